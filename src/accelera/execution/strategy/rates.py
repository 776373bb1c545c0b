"""Rates of devices: seconds of a launch and of a task, fitted to measured pieces."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, final

from accelera.errors import ArgumentError

SHARE = 0.6
"""The GPU takes this part of what it would get of the rest if both sides ended together."""
LAUNCHES = 4
"""A piece should take the GPU at least so many times its launch."""


class DeviceRates(NamedTuple):
    """Seconds of a task on each side, and of a launch on the GPU."""

    cpu_task_s: float
    """Seconds of one task on one of the CPU's workers."""
    workers: int
    """How many of them there are."""
    gpu_task_s: float
    """Seconds that a task adds to a piece on the GPU."""
    launch_s: float = 0.0
    """Seconds of every piece on the GPU, however small."""
    begin_s: float = 0.0
    """Seconds before the GPU's first piece."""
    late_s: float = 0.0
    """Seconds that one task on the CPU may well take, where tasks differ; as long as usual if it is less."""

    def cpu_s(self, task_count: int) -> float:
        """Return the seconds in which the CPU alone does so many tasks."""
        return self.cpu_task_s * max(1.0, task_count / self.workers)

    def gpu_s(self, task_count: int) -> float:
        """Return the seconds of one piece on the GPU."""
        return self.launch_s + task_count * self.gpu_task_s

    def gpu_count(self, remaining: int) -> int:
        """Return how many of the remaining tasks the GPU takes now.

        0 when the CPU would surely have done all of them before the GPU one; all when the GPU would have done
        all of them before the CPU one.
        """
        if self.gpu_s(1) > max(self.cpu_s(remaining), self._late_s):
            return 0
        if self.gpu_s(remaining) <= self._late_s:
            return remaining
        together_s = self.cpu_task_s / self.workers
        even = (remaining * together_s - self.launch_s) / (self.gpu_task_s + together_s)
        worthwhile = LAUNCHES * self.launch_s / self.gpu_task_s
        return max(1, int(min(max(SHARE * even, worthwhile), even)))

    def cpu_count(self, remaining: int, gpu_left_s: float) -> int:
        """Return the most of the remaining tasks that a worker of the CPU takes now.

        0 when the GPU, which will be free in ``gpu_left_s``, would have done all of them before.
        """
        gpu_s = gpu_left_s + self.gpu_s(remaining)
        if self._late_s > gpu_s:
            return 0
        return max(1, int(gpu_s / (self.cpu_task_s + self.gpu_task_s)))

    @property
    def _late_s(self) -> float:
        return max(self.cpu_task_s, self.late_s)


NEEDED = 10
"""Samples from which on a device's rates are used, and a sample can be an error."""
FAR, FAR_SPREADS = 0.5, 4.0
"""A sample is an error when it is off by half of what was expected, and by four times the usual spread."""
KEPT = 64
"""When there are so many samples, all count half from then on: what is new weighs more than what is old."""
NEAR = 0.01
"""Estimates that differ by no more than this part say the same."""
SIGNIFICANT = 2.0
"""A launch is believed when it is so many times its own standard error."""


class RateEstimate(NamedTuple):
    """Rates fitted to the samples; ``seconds(n) = launch_s + n * task_s``."""

    launch_s: float
    """Seconds that every piece takes, however few its tasks."""
    task_s: float
    """Seconds that each task adds."""
    spread_s: float
    """How far one task usually is from it, in seconds (standard deviation)."""
    uncertainty: float
    """Standard error of ``task_s``, relative to it."""
    samples: int
    """Pieces behind it."""

    def seconds(self, task_count: int) -> float:
        """Return the seconds that one piece of ``task_count`` tasks should take."""
        return self.launch_s + task_count * self.task_s

    def is_near(self, other: RateEstimate) -> bool:
        """Return whether a decision made from one would be made from the other."""
        near_s = NEAR * self.seconds(1)
        return (
            abs(self.launch_s - other.launch_s) <= near_s
            and abs(self.task_s - other.task_s) <= NEAR * self.task_s
            and abs(self.spread_s - other.spread_s) <= 5 * near_s
            and abs(self.uncertainty - other.uncertainty) <= NEAR
        )


@final
class RateModel:
    """Samples of one function on one device, kept as sums. Not thread-safe.

    The rules are StarPU's: a sample far from what is expected counts as an error and is not averaged, and
    when there are as many errors as samples, the device has changed and everything is forgotten.

    Parameters
    ----------
    launches
        Whether a piece takes time of its own besides its tasks', as on a GPU.
    """

    __slots__ = ("_inverse", "_per_task", "_seconds", "_squares", "_tasks", "errors", "launches", "samples")

    def __init__(self, *, launches: bool) -> None:
        self.launches = launches
        self._forget()

    def _forget(self) -> None:
        self.samples = 0
        """Pieces that were averaged and are still remembered."""
        self.errors = 0
        """Pieces that were too far off to be averaged."""
        self._tasks = self._seconds = self._inverse = self._per_task = self._squares = 0.0

    def record(self, task_count: int, seconds: float) -> None:
        """Learn from a piece of ``task_count`` tasks that went well; nonsense is ignored."""
        if task_count < 1 or not 0 < seconds < math.inf:
            return
        if self._is_far(task_count, seconds):
            self.errors += 1
            if self.errors >= self.samples:
                self._forget()
            return
        if self.samples >= KEPT:
            self._halve()
        self.samples += 1
        self._tasks += task_count
        self._seconds += seconds
        self._inverse += 1 / task_count
        self._per_task += seconds / task_count
        self._squares += seconds * seconds / task_count

    def estimate(self) -> RateEstimate | None:
        """Return what the samples say; None while there is none."""
        if not self.samples:
            return None
        launch_s, task_s = self._fit() if self.launches else (0.0, self._seconds / self._tasks)
        spread_s = math.sqrt(self._variance(launch_s, task_s))
        uncertainty = spread_s / math.sqrt(self._tasks) / task_s
        return RateEstimate(launch_s, task_s, spread_s, uncertainty, self.samples)

    def state(self) -> list[float]:
        """Return everything as numbers, for a file."""
        sums = [self._tasks, self._seconds, self._inverse, self._per_task, self._squares]
        return [self.samples, self.errors, *sums]

    @staticmethod
    def of_state(state: Sequence[float], *, launches: bool) -> RateModel:
        """Return the rates that ``state`` describes; raises ValueError where it cannot be one."""
        samples, errors, *sums = state
        whole = all(isinstance(each, int) and 0 <= each <= KEPT for each in (samples, errors))
        positive = len(sums) == 5 and all(0 <= each < math.inf for each in sums)
        if not (whole and positive) or (samples and not (sums[0] >= 1 and sums[1] > 0)):
            raise ArgumentError(f"{state} are no rates")
        rates = RateModel(launches=launches)
        rates.samples, rates.errors = int(samples), int(errors)
        rates._tasks, rates._seconds, rates._inverse, rates._per_task, rates._squares = sums
        return rates

    def _is_far(self, task_count: int, seconds: float) -> bool:
        if self.samples < NEEDED:
            return False
        estimate = self.estimate()
        assert estimate is not None, "there are samples"
        expected_s = estimate.seconds(task_count)
        spread_s = FAR_SPREADS * estimate.spread_s * math.sqrt(task_count)
        return abs(seconds - expected_s) > max(FAR * expected_s, spread_s)

    def _fit(self) -> tuple[float, float]:
        """Return launch and time per task by least squares, a piece of many tasks varying the more.

        Where the pieces do not tell the two apart, all the time is the tasks'.
        """
        ratio_s = self._seconds / self._tasks
        apart = self._inverse * self._tasks - self.samples**2
        if apart <= 1e-6 * self.samples**2:
            return 0.0, ratio_s
        launch_s = (self._per_task * self._tasks - self.samples * self._seconds) / apart
        task_s = (self._seconds - self.samples * launch_s) / self._tasks
        doubt_s = math.sqrt(self._variance(launch_s, task_s) * self._tasks / apart)
        if launch_s <= SIGNIFICANT * doubt_s:
            return 0.0, ratio_s
        if task_s <= 1e-3 * ratio_s:
            task_s = 1e-3 * ratio_s
            launch_s = max(0.0, (self._seconds - task_s * self._tasks) / self.samples)
        return launch_s, task_s

    def _variance(self, launch_s: float, task_s: float) -> float:
        """Return the variance of one task's seconds that the pieces show."""
        if self.samples < 3:
            return (self._seconds / self._tasks) ** 2
        off = (
            self._squares
            - 2 * launch_s * self._per_task
            - 2 * task_s * self._seconds
            + launch_s**2 * self._inverse
            + 2 * launch_s * task_s * self.samples
            + task_s**2 * self._tasks
        )
        return max(0.0, off) / (self.samples - 2)

    def _halve(self) -> None:
        self.samples //= 2
        self.errors //= 2
        for name in ("_tasks", "_seconds", "_inverse", "_per_task", "_squares"):
            setattr(self, name, getattr(self, name) / 2)
