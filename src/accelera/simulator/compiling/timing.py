"""Time of one step of the program by the roofline, and the resource that bounds it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from accelera.memory import Compute
from accelera.simulator.compiling.dataflow import Dataflow
from accelera.simulator.compiling.figure import Figure
from accelera.simulator.compiling.fusion import FusedKernel
from accelera.trace import Trace

NOTHING = Figure(None, "s")
RANGES = {"as traced": (0.8, 3.5), "compiled": (0.8, 3.5), "compiled, as traced measured": (0.5, 1.5)}
"""Measured seconds over predicted ones: the least and the most to be expected, on a CPU whose speeds were
probed. Source: ``python -m benchmarks compile``; 13, 12 and 14 of its 14 steps lie inside."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of one pass through the trace, by what they are spent on."""

    total: Figure
    compute: Figure
    """Kernels that arithmetic holds up."""
    bandwidth: Figure
    """Kernels that reading and writing memory holds up."""
    launches: Figure
    """Starting kernels."""
    bound: str
    """The largest of the three: ``compute``, ``memory bandwidth`` or ``launches``."""
    low: Figure = NOTHING
    """With ``high``, between which a measured step is to be expected: see ``RANGES``."""
    high: Figure = NOTHING


@dataclass(frozen=True)
class TimePrediction:
    """The program step by step as traced, and compiled.

    Where the trace has recorded seconds, or ``capture`` timed the whole (``meta["measured_s"]``), they are
    the time as traced, and all else is scaled with it: the roofline then tells shares and the speedup.
    """

    eager: StepTime
    compiled: StepTime
    speedup: Figure

    @property
    def measured(self) -> bool:
        """Whether the time as traced was measured."""
        return self.eager.total.source == "measured"


def predict_time(
    trace: Trace, flow: Dataflow, kernels: Sequence[FusedKernel], compute: Compute
) -> TimePrediction:
    """Return the time of the traced steps and of the kernels that a compiler would make of them."""
    steps = [each for each in flow.operations if each.runs]
    eager = _step_time(
        np.array([each.flops for each in steps]),
        np.array([each.nbytes for each in steps], dtype=np.float64),
        np.ones(len(steps)),
        compute,
    )
    compiled = _step_time(
        np.array([each.flops for each in kernels]),
        np.array([each.nbytes for each in kernels], dtype=np.float64),
        np.array([each.launches for each in kernels], dtype=np.float64),
        compute,
    )
    before, after = eager.total.value or 0.0, compiled.total.value or 0.0
    speedup = Figure(before / after if after else 1.0, "x")
    recorded = measured_seconds(trace)
    if recorded is None:
        return TimePrediction(_ranged(eager, "as traced"), _ranged(compiled, "compiled"), speedup)
    factor = recorded / before if before else 1.0
    eager, compiled = _scaled(eager, factor), _scaled(compiled, factor)
    total = Figure(recorded, "s", "measured")
    eager = replace(eager, total=total, low=total, high=total)
    return TimePrediction(eager, _ranged(compiled, "compiled, as traced measured"), speedup)


def measured_seconds(trace: Trace) -> float | None:
    """Return the seconds that one pass through the trace was measured to take; None: not measured."""
    if trace.step_count and not np.isnan(trace.seconds).any():
        return float(trace.seconds.sum())
    whole = trace.meta.get("measured_s")
    return float(whole) if isinstance(whole, (int, float)) and math.isfinite(whole) else None


def _ranged(time: StepTime, what: str) -> StepTime:
    least, most = RANGES[what]
    total = time.total.value or 0.0
    return replace(time, low=Figure(least * total, "s"), high=Figure(most * total, "s"))


def _step_time(
    flops: NDArray[np.float64], nbytes: NDArray[np.float64], launches: NDArray[np.float64], compute: Compute
) -> StepTime:
    arithmetic, memory = flops / compute.flops_per_s, nbytes / compute.bandwidth_bytes_per_s
    held_up = arithmetic > memory
    parts = {
        "compute": float(arithmetic[held_up].sum()),
        "memory bandwidth": float(memory[~held_up].sum()),
        "launches": float(launches.sum() * compute.launch_s),
    }
    return StepTime(
        total=Figure(sum(parts.values()), "s"),
        compute=Figure(parts["compute"], "s"),
        bandwidth=Figure(parts["memory bandwidth"], "s"),
        launches=Figure(parts["launches"], "s"),
        bound=max(parts, key=parts.__getitem__),
    )


def _scaled(time: StepTime, factor: float) -> StepTime:
    """Return the time where everything takes ``factor`` times as long as the roofline says."""

    def longer(part: Figure) -> Figure:
        return Figure((part.value or 0.0) * factor, part.unit)

    return StepTime(
        longer(time.total), longer(time.compute), longer(time.bandwidth), longer(time.launches), time.bound
    )
