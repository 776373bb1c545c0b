"""Window of a stream: how many tasks, or bytes, may be in memory at once."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any, final

from accelera.errors import ArgumentError
from accelera.execution.arguments import described
from accelera.units import parse_limit

DEFAULT_TASKS = 1024
"""Enough for pieces that are worth handing out, whatever the tasks."""
MOST_PARTS = 64
"""Of a larger collection so many parts are looked at, a quarter of that one level below, and so on; the
others are taken to be like them."""


@final
class Window:
    """Counts tasks from when they are drawn until their outputs are taken. Not thread-safe.

    A window in bytes reckons with the largest task and the largest output so far for each task. Unless their
    size is stated it begins with one task, and lets in up to twice as many as have been done.

    Parameters
    ----------
    limit
        A number of tasks, or an amount of memory as text, such as ``"256MiB"``; None: 1024 tasks.
    memory_per_task
        Bytes of a task and its output, for a window in bytes; 0: what they turn out to be.

    Raises
    ------
    TypeError
        When the limit is neither a whole number nor text.
    ValueError
        When the limit is below 1, or no amount of memory.
    """

    def __init__(self, limit: int | str | None = None, memory_per_task: int = 0) -> None:
        self.by_bytes = isinstance(limit, str)
        """Whether tasks and outputs are measured."""
        self._limit = _parse_limit(limit)
        if self._limit < 1:
            raise ArgumentError(
                f"[stream] window={limit!r}: give at least 1 task, or memory such as '256MiB'"
            )
        self._stated_bytes = memory_per_task
        self._task_bytes = self._output_bytes = 0
        self._sized = 0
        self._kept_bytes = 0
        self.drawn = 0
        """Tasks that count now."""

    @property
    def most(self) -> int:
        """How many tasks may be in memory at once, as far as their size is known; at least 1."""
        return max(1, self._limit // self._expected_bytes) if self.by_bytes else self._limit

    @property
    def room(self) -> int:
        """How many tasks may be drawn now; at least one while nothing is in memory."""
        if not self.by_bytes:
            return self._limit - self.drawn
        if not self.drawn:
            return 1
        held_bytes = max(self.drawn * self._expected_bytes, self._kept_bytes)
        free = (self._limit - held_bytes) // self._expected_bytes
        return free if self._stated_bytes else min(free, 2 * self._sized - self.drawn)

    def draw(self, count: int) -> None:
        """Add ``count`` drawn tasks; a negative count takes back room that the source did not fill."""
        self.drawn += count

    def weigh(self, task: Any) -> bool:
        """Measure a drawn task of a window in bytes; return whether it leaves less room than expected."""
        nbytes = size_of(task)
        if nbytes <= self._task_bytes:
            return False
        self._task_bytes = nbytes
        return self._stated_bytes < self._task_bytes + self._output_bytes

    def keep(self, output: Any) -> int:
        """Add an output that waits to be taken; return its bytes, 0 for a window of tasks."""
        if not self.by_bytes:
            return 0
        nbytes = size_of(output)
        self._output_bytes = max(self._output_bytes, nbytes)
        self._kept_bytes += nbytes
        self._sized += 1
        return nbytes

    def let_go(self, nbytes: int) -> None:
        """Remove an output of ``nbytes`` that was taken."""
        self.drawn -= 1
        self._kept_bytes -= nbytes

    @property
    def _expected_bytes(self) -> int:
        return max(self._stated_bytes, self._task_bytes + self._output_bytes, 1)


def _parse_limit(limit: Any) -> int:
    """Return a limit as a number of tasks or of bytes; raises TypeError when it is of another kind."""
    if limit is None:
        return DEFAULT_TASKS
    if isinstance(limit, str):
        return parse_limit("stream", limit)
    if not hasattr(limit, "__index__") or isinstance(limit, bool):
        raise ArgumentError(
            f"[stream] window={described(limit)}: give a whole number of tasks, or memory such as '256MiB'"
        )
    return min(operator.index(limit), sys.maxsize)


def size_of(value: Any, depth: int = 0) -> int:
    """Return the bytes of a value: of arrays and tensors their data, of containers what they hold.

    Of other objects only their own: what they refer to does not show. 0 where looking fails.
    """
    try:
        return _size_of(value, depth)
    except Exception:
        return 0


def _size_of(value: Any, depth: int) -> int:
    nbytes = getattr(value, "nbytes", None)
    if isinstance(nbytes, int):
        return nbytes
    parts: Iterator[Any]
    own, looked_at = sys.getsizeof(value), MOST_PARTS >> 2 * depth
    if isinstance(value, Mapping):
        parts, count = chain.from_iterable(value.items()), 2 * len(value)
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts, count = iter(value), len(value)
    else:
        return own
    sizes = [size_of(part, depth + 1) for part in islice(parts, looked_at)]
    return own + sum(sizes) * count // max(len(sizes), 1)
