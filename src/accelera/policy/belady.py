"""Belady's MIN: evict the buffer whose next use lies furthest in the future.

    1. Before the run, note for each access when the same buffer is accessed next.
    2. On insert or touch at time t, push (next use after t) on a heap, furthest on top.
    3. The victim is the top entry that is current, resident and evictable.
    4. When most entries are outdated, build the heap anew: it stays as small as what is resident.

Optimal in the number of misses for buffers of one size (Belady 1966). It needs the future, which
a planned run has.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Sequence

NEVER = (1 << 31) - 1

_SLACK = 64
"""Outdated entries that the heap may hold in any case."""


def next_uses(sequence: Sequence[int]) -> array[int]:
    """Return for each position the position of the same buffer's next access, or ``NEVER``."""
    upcoming: dict[int, int] = {}
    result = array("i", [NEVER]) * len(sequence)
    for position in range(len(sequence) - 1, -1, -1):
        buffer = sequence[position]
        result[position] = upcoming.get(buffer, NEVER)
        upcoming[buffer] = position
    return result


class Belady:
    """Offline optimal replacement over a known access sequence."""

    def __init__(self, sequence: Sequence[int]) -> None:
        self._next_use = next_uses(sequence)
        self._due: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []

    def insert(self, buffer: int, nbytes: int, time: int) -> None:
        """Take note that ``buffer`` became resident at access ``time``."""
        self.touch(buffer, time)

    def touch(self, buffer: int, time: int) -> None:
        """Take note that resident ``buffer`` was accessed at ``time``."""
        due = self._next_use[time]
        self._due[buffer] = due
        heapq.heappush(self._heap, (-due, buffer))
        if len(self._heap) > 2 * len(self._due) + _SLACK:
            self._heap = [(-due, buffer) for buffer, due in self._due.items()]
            heapq.heapify(self._heap)

    def remove(self, buffer: int) -> None:
        """Forget ``buffer``."""
        del self._due[buffer]

    def victim(self, evictable: Callable[[int], bool]) -> int | None:
        """Return the evictable buffer used furthest in the future, or None."""
        skipped = []
        found = None
        while self._heap:
            entry = heapq.heappop(self._heap)
            due, buffer = -entry[0], entry[1]
            if self._due.get(buffer) != due:
                continue
            skipped.append(entry)
            if evictable(buffer):
                found = buffer
                break
        for entry in skipped:
            heapq.heappush(self._heap, entry)
        return found
