"""Pieces sized by time: long enough to be worth handing out, short enough to share the rest evenly."""

from __future__ import annotations

from typing import final


@final
class TimedSize:
    """How many tasks one worker takes next. Not thread-safe: one for each worker.

    Parameters
    ----------
    target_s
        Seconds that a piece should take.
    workers
        How many share what remains.
    least_s
        Seconds below which a piece is not worth handing out, though the rest is shared less evenly then.
    task_s
        Seconds that a task takes, as far as is known; None: the first piece is one task.
    """

    def __init__(
        self, target_s: float, workers: int, *, least_s: float = 0.0, task_s: float | None = None
    ) -> None:
        self._target_s = target_s
        self._least_share = least_s / target_s
        self._shares = 2 * max(workers, 1)
        self._size = 1 if task_s is None else max(1, int(target_s / max(task_s, 1e-9)))

    def next(self, remaining: int) -> int:
        """Return a number of tasks, at least 1."""
        return max(1, min(self._size, max(remaining // self._shares, int(self._least_share * self._size))))

    def ran(self, task_count: int, seconds: float) -> None:
        """Learn from a piece; the size at most quadruples."""
        if task_count:
            fitting = int(self._target_s * task_count / max(seconds, 1e-9))
            self._size = max(1, min(fitting, 4 * max(task_count, self._size)))
