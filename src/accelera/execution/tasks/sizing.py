"""Sizes: bytes of a task, as far as they show, and numbers of tasks by the time they take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, final

from accelera.errors import TaskTooLargeError
from accelera.execution.tasks.queue import TaskRange

MOST_PARTS: Final = 64
"""Of a larger collection only so many parts are looked at, and the others taken to be like them."""
MOST_LOOKS: Final = 4096
"""Of all collections within one task only so many parts are looked at; what is beyond counts as nothing."""


def bytes_of(task: Any) -> int:
    """Return the bytes of the arrays and byte strings in ``task``; 0 where none shows, or looking fails."""
    try:
        return _bytes_of(task, iter(range(MOST_LOOKS)))
    except Exception:
        return 0


def _bytes_of(task: Any, looks: Iterator[int]) -> int:
    if next(looks, None) is None:
        return 0
    nbytes = getattr(task, "nbytes", None)
    if isinstance(nbytes, int):
        return nbytes
    if isinstance(task, (bytes, bytearray, str)):
        return len(task)
    if isinstance(task, Mapping):
        task = list(task.values())
    if not isinstance(task, (list, tuple)) or not task:
        return 0
    seen = task[:MOST_PARTS]
    return sum(_bytes_of(part, looks) for part in seen) * len(task) // len(seen)


def refusal(piece: TaskRange, memory_per_task: int, budget_bytes: int | None) -> TaskTooLargeError | None:
    """Return why the one task of ``piece`` must not go to the CPU; None: it may.

    A task whose size is not known, neither stated nor visible in its arrays, may.
    """
    needed_bytes = memory_per_task or bytes_of(piece.tasks[0])
    if budget_bytes is None or needed_bytes <= budget_bytes:
        return None
    return TaskTooLargeError(
        f"[execute] task {piece.start} takes {needed_bytes:,} bytes: it does not fit the device even alone,"
        f" and the CPU may use {budget_bytes:,} bytes; raise the budget, or make smaller tasks",
        index=piece.start,
        needed_bytes=needed_bytes,
        budget_bytes=budget_bytes,
    )


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
