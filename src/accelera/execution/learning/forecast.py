"""Seconds that a batch would take by each strategy, from measured rates."""

from __future__ import annotations

import math
from typing import NamedTuple

from accelera.execution.learning.rates import Estimate
from accelera.execution.pace import Pace

MARGIN = 0.05
"""A strategy that takes a GPU along must be so much faster than the CPU alone, beyond what is uncertain."""
MOST_UNCERTAIN = 0.5
"""However uncertain, so much faster is enough."""
MENDED = 0.25
"""The part of the uncertainty that counts where both sides pull."""
LATE = 2.0
"""A task may well take so many standard deviations more than usual."""
LAUNCHES = 3
"""Pieces that the GPU gets, on the whole, where both sides pull."""


class Forecast(NamedTuple):
    """Seconds by strategy."""

    cpu_s: float
    gpu_s: float
    hybrid_s: float
    gpu_needed: float
    """The part of ``cpu_s`` that the GPU alone must stay below to be chosen."""
    hybrid_needed: float
    """The same for both together."""

    def by_name(self) -> dict[str, float]:
        """Return the seconds by the strategies' names."""
        return {"CpuOnly": self.cpu_s, "GpuOnly": self.gpu_s, "Hybrid": self.hybrid_s}


def pace_of(
    cpu: Estimate,
    gpu: Estimate,
    workers: int,
    speeds: tuple[float, float] = (1.0, 1.0),
    begin_s: float = 0.0,
) -> Pace:
    """Return the pace on a machine of which others leave the given shares of CPU and GPU."""
    on_cpu, on_gpu = speeds
    late_s = (cpu.task_s + LATE * cpu.spread_s) / on_cpu
    return Pace(cpu.task_s / on_cpu, workers, gpu.task_s / on_gpu, gpu.launch_s / on_gpu, begin_s, late_s)


def forecast(
    count: int, pace: Pace, fitting: int | None, uncertainty: float, *, repeats: bool = False
) -> Forecast:
    """Return what ``count`` tasks would take.

    Parameters
    ----------
    count
        Number of tasks, at least 1.
    pace
        Seconds of a task on either side.
    fitting
        Tasks that fit the GPU at once; None: any number.
    uncertainty
        Relative standard error of the ratio of both rates. Where both sides pull, wrong rates are mended on
        the way, and a part of it counts.
    repeats
        Whether a side takes over tasks that the other is late with: then both together are never later than
        one alone.
    """
    cpu_s = _cpu_s(count, pace)
    launches = 1 if fitting is None else math.ceil(count / fitting)
    gpu_s = pace.begin_s + launches * pace.launch_s + count * pace.gpu_task_s
    gpu_needed = 1 - MARGIN - min(uncertainty, MOST_UNCERTAIN)
    if repeats:
        hybrid_s = min(cpu_s, gpu_s, _even_s(count, pace, fitting))
        helps = pace.begin_s + pace.gpu_s(1) < cpu_s
        return Forecast(cpu_s, gpu_s, hybrid_s, gpu_needed, math.inf if helps else 0.0)
    hybrid_s = _together_s(count, pace, fitting)
    return Forecast(
        cpu_s, gpu_s, hybrid_s, gpu_needed, 1 - MARGIN - MENDED * min(uncertainty, MOST_UNCERTAIN)
    )


def _together_s(count: int, pace: Pace, fitting: int | None) -> float:
    """Return the seconds of both, with half a long task of the CPU at the end."""
    if pace.begin_s + LAUNCHES * pace.launch_s >= pace.cpu_s(count):
        return _cpu_s(count, pace) + pace.launch_s
    return max(_even_s(count, pace, fitting) + pace.late_s / 2, pace.cpu_task_s)


def _cpu_s(count: int, pace: Pace) -> float:
    """Return the seconds of the CPU: the last task begun may be one of the long ones."""
    longer_s = (pace.late_s - pace.cpu_task_s) / (2 * LATE)
    even_s = pace.cpu_task_s * count / pace.workers
    return max(pace.cpu_task_s * math.ceil(count / pace.workers), even_s + longer_s)


def _even_s(count: int, pace: Pace, fitting: int | None) -> float:
    """Return the seconds of both when they end together."""
    task_s = pace.gpu_task_s + (pace.launch_s / fitting if fitting is not None else 0.0)
    cpu_rate, gpu_rate = pace.workers / pace.cpu_task_s, 1 / task_s
    waiting_s = pace.begin_s + LAUNCHES * pace.launch_s
    return (count + waiting_s * gpu_rate) / (cpu_rate + gpu_rate)
