"""How fast GPU and CPU get through the tasks of a batch, and what that means for the next piece."""

from __future__ import annotations

from typing import NamedTuple

SHARE = 0.6
"""The GPU takes this part of what it would get of the rest if both sides ended together."""
LAUNCHES = 4
"""A piece should take the GPU at least so many times its launch."""


class Pace(NamedTuple):
    """Seconds of one task on either side."""

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

        None when the CPU would surely be through with all of them before the GPU with one; all when the GPU
        would be through with all of them before the CPU with one.
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

        None when the GPU, which will be free in ``gpu_left_s``, would be through with all of them before.
        """
        gpu_s = gpu_left_s + self.gpu_s(remaining)
        if self._late_s > gpu_s:
            return 0
        return max(1, int(gpu_s / (self.cpu_task_s + self.gpu_task_s)))

    @property
    def _late_s(self) -> float:
        return max(self.cpu_task_s, self.late_s)
