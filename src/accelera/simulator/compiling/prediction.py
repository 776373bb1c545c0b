"""What is predicted of a traced program, as figures, as tables and as sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from accelera.simulator.compiling.budgets import BudgetPlan
from accelera.simulator.compiling.figure import Figure, as_json
from accelera.simulator.compiling.fitting import FITS, INFEASIBLE, Fit
from accelera.simulator.compiling.memory import MemoryPrediction
from accelera.simulator.compiling.scaling import Limit
from accelera.simulator.compiling.tables import aligned
from accelera.simulator.compiling.timing import TimePrediction

_LISTED = 8


@dataclass(frozen=True)
class Fusion:
    """Operations that become one kernel."""

    ops: tuple[str, ...]
    phase: str
    """``forward``, ``backward`` or ``optimizer``."""
    saved_bytes: Figure
    saved_launches: Figure


@dataclass(frozen=True)
class FusionPrediction:
    """The compiled program beside the traced one."""

    eager_launches: Figure
    launches: Figure
    eager_traffic: Figure
    """Bytes that the traced steps read and write."""
    traffic: Figure
    """Bytes that the kernels read and write."""
    peak: Figure
    """Peak memory without what stays inside kernels."""
    fusions: tuple[Fusion, ...]
    """The largest, by bytes saved."""


@dataclass(frozen=True)
class CompilePrediction:
    """Everything ``predict_compile`` says of a traced program."""

    model_type: str
    machine: str
    steps: int
    memory: MemoryPrediction
    fusion: FusionPrediction
    time: TimePrediction
    fits: tuple[Fit, ...]
    limits: tuple[Limit, ...]
    plans: tuple[BudgetPlan, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able values; every number carries its unit and its source."""
        found: dict[str, Any] = as_json(self)
        return found

    def table(self) -> str:
        """Return the figures as text tables."""
        return _tabulated(self)

    def explain(self) -> str:
        """Return what the figures mean, in sentences."""
        return _explained(self)


def _tabulated(found: CompilePrediction) -> str:
    """Return the figures of a prediction as text tables."""
    parts = [_facts(found), _memory(found), _fusions(found), _verdicts(found), _limits(found), _plans(found)]
    return "\n\n".join(part for part in parts if part)


def _explained(found: CompilePrediction) -> str:
    """Return a prediction in sentences."""
    return "\n".join([*_memory_sentences(found), *_time_sentences(found), *_plan_sentences(found)])


def _facts(found: CompilePrediction) -> str:
    time, fusion = found.time, found.fusion
    eager, compiled = time.eager, time.compiled
    return aligned(
        [
            (found.model_type or "program", "as traced", "compiled"),
            ("launches", fusion.eager_launches.text, fusion.launches.text),
            ("traffic", fusion.eager_traffic.text, fusion.traffic.text),
            ("peak memory", found.memory.peak.text, fusion.peak.text),
            (f"time on {found.machine}", eager.total.text, compiled.total.text),
            ("  arithmetic", eager.compute.text, compiled.compute.text),
            ("  memory", eager.bandwidth.text, compiled.bandwidth.text),
            ("  launches", eager.launches.text, compiled.launches.text),
            ("bound by", eager.bound, compiled.bound),
        ]
    )


def _memory(found: CompilePrediction) -> str:
    memory = found.memory
    roles = [(role, size.text, "") for role, size in memory.by_role.items()]
    largest = [(f"  {each.name}", each.size.text, each.role) for each in memory.top[:_LISTED]]
    head = (f"at the peak ({memory.peak_op}, step {memory.peak_step})", memory.peak.text, "")
    floor = (f"hard floor ({memory.hard_floor_op})", memory.hard_floor.text, "")
    return aligned([head, *roles, ("largest tensors", "", ""), *largest, floor])


def _fusions(found: CompilePrediction) -> str:
    rows = [
        (_shortened(each.ops), each.phase, each.saved_bytes.text, each.saved_launches.text)
        for each in found.fusion.fusions[:_LISTED]
    ]
    return aligned([("merged", "phase", "bytes saved", "launches saved"), *rows]) if rows else ""


def _shortened(ops: Sequence[str]) -> str:
    names = list(ops[:6]) + ([f"… {len(ops) - 6} more"] if len(ops) > 6 else [])
    return " + ".join(names)


def _verdicts(found: CompilePrediction) -> str:
    rows = [
        (
            each.budget.text,
            each.verdict,
            each.traffic.text,
            each.added.text,
            _percent(each.overlapped.value),
            each.bound,
        )
        for each in found.fits
    ]
    return aligned([("budget", "verdict", "extra moved", "added", "overlapped", "bound by"), *rows])


def _limits(found: CompilePrediction) -> str:
    rows = [(each.budget.text, each.batch.text, each.context.text, each.how) for each in found.limits]
    return aligned([("budget", "largest batch", "largest context", "found by"), *rows]) if rows else ""


def _plans(found: CompilePrediction) -> str:
    head = ("plan for", "peak", "offload", "recompute", "drop early", "time", "added", "feasible")
    rows = [
        (
            each.budget.text,
            each.peak.text,
            each.offloaded.text,
            each.recomputed.text,
            each.dropped.text,
            each.total.text,
            each.added.text,
            "yes" if each.feasible else "no",
        )
        for each in found.plans
    ]
    return aligned([head, *rows]) if rows else ""


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"


def _memory_sentences(found: CompilePrediction) -> Iterator[str]:
    memory = found.memory
    roles = ", ".join(f"{size.text} {role.replace('_', ' ')}" for role, size in memory.by_role.items())
    yield f"The peak is {memory.peak} in {memory.peak_op} (step {memory.peak_step}): {roles}."
    yield (f"No schedule needs less than {memory.hard_floor}, what {memory.hard_floor_op} touches at once.")
    for each in found.fits:
        if each.verdict == FITS:
            yield f"It fits {each.budget.text}."
        elif each.verdict == INFEASIBLE:
            yield f"{each.budget.text} is less than one step needs: infeasible, however data is moved."
        else:
            yield (
                f"In {each.budget.text} it runs by moving {each.traffic}, which adds {each.added} to a step; "
                f"{_percent(each.overlapped.value)} of the transfers are hidden behind computing."
            )
    for limit in found.limits:
        yield (
            f"Within {limit.budget.text} the largest batch is {limit.batch.text} and the largest context "
            f"{limit.context.text} ({limit.how})."
        )


def _time_sentences(found: CompilePrediction) -> Iterator[str]:
    fusion, time = found.fusion, found.time
    yield (
        f"Compiled, {fusion.eager_launches.text} launches become {fusion.launches.text} and "
        f"{fusion.eager_traffic.text} of traffic {fusion.traffic} on {found.machine}."
    )
    yield (
        f"A step takes {time.eager.total} as traced, bound by {time.eager.bound}, and {time.compiled.total} "
        f"compiled, bound by {time.compiled.bound}: {time.speedup.text} faster."
    )


def _plan_sentences(found: CompilePrediction) -> Iterator[str]:
    for each in found.plans:
        if not each.feasible:
            yield f"No plan was found for {each.budget.text}; the lowest peak reached is {each.peak.text}."
            continue
        parts = (
            (each.offloaded, "offloaded"),
            (each.recomputed, "computed again"),
            (each.dropped, "dropped"),
        )
        done = [f"{size.text} {what}" for size, what in parts if size.value]
        what = ", ".join(done) or "nothing to do"
        yield f"Plan for {each.budget.text}: {what}; peak {each.peak}, {each.added} added."
