"""Sets of task indices as ranges: the ones not taken yet, and the ones not done."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import final

from accelera.execution.tasks.queue import DeviceKind

Range = tuple[int, int]


@final
class RangeQueue:
    """Indices from 0 up to ``count``, in one heap for both sides or in a share for each. Not thread-safe.

    Parameters
    ----------
    count
        Number of tasks.
    gpu_count
        The first so many are the GPU's and the others the CPU's; None: both take from all of them.
    first
        The indices below it are done already.
    """

    def __init__(self, count: int, gpu_count: int | None = None, first: int = 0) -> None:
        self._shared = gpu_count is None
        self._front, self._back = first, count
        self._border = count if gpu_count is None else max(gpu_count, first)
        self._next_of_cpu = self._border
        self._returned: deque[Range] = deque()
        self._for_both: deque[Range] = deque()
        self._for_cpu: deque[Range] = deque()
        self._waiting = self._taken_over = 0
        self._given_up = False

    def __len__(self) -> int:
        """How many nobody has taken; about so many, when asked while others take."""
        if self._shared:
            return max(0, self._back - self._front) + self._waiting
        return self._border - self._front + self._back - self._next_of_cpu + self._waiting

    def take(self, side: DeviceKind, count: int) -> Range | None:
        """Return up to ``count`` indices as ``(start, stop)``; None when there is none for ``side``.

        With a ``count`` of 0 only of what came back, one at a time.
        """
        if self._returned:
            return self._taken_back(side, max(count, 1))
        if self._for_both:
            return self._split(self._for_both, max(count, 1))
        if side is DeviceKind.CPU and self._for_cpu:
            return self._split(self._for_cpu, max(count, 1))
        if not count:
            return None
        if side is DeviceKind.CPU:
            return self._from_back(count) if self._shared else self._from_share(count)
        return self._from_front(count)

    def give_back(self, start: int, stop: int) -> None:
        """Put indices back for whichever side comes first."""
        self._returned.append((start, stop))
        self._waiting += stop - start

    def leave(self, start: int, stop: int, *, for_good: bool) -> None:
        """Put indices back that a GPU failed at: for the CPU alone, or not ``for_good``."""
        (self._for_cpu if for_good else self._for_both).append((start, stop))
        self._waiting += stop - start

    def give_up_gpu_share(self) -> int:
        """Let both have what was kept for the GPU; return how many indices that are, counted only once."""
        if self._shared or self._given_up:
            return 0
        self._given_up = True
        if self._front < self._border:
            self.give_back(self._front, self._border)
            self._front = self._border
        return sum(stop - start for start, stop in self._returned if start < self._border)

    def taken_over(self) -> int:
        """Return how many the CPU took of what the GPU was kept and gave back; counted only once."""
        taken, self._taken_over = self._taken_over, 0
        return taken

    def _taken_back(self, side: DeviceKind, count: int) -> Range:
        start, stop = self._split(self._returned, count)
        if side is DeviceKind.CPU and start < self._border and not (self._shared or self._given_up):
            self._taken_over += stop - start
        return start, stop

    def _split(self, heap: deque[Range], count: int) -> Range:
        start, stop = heap.popleft()
        if stop - start > count:
            heap.appendleft((start + count, stop))
            stop = start + count
        self._waiting -= stop - start
        return start, stop

    def _from_front(self, count: int) -> Range | None:
        limit = self._back if self._shared else self._border
        start, self._front = self._front, min(self._front + count, limit)
        return (start, self._front) if start < self._front else None

    def _from_back(self, count: int) -> Range | None:
        stop, self._back = self._back, max(self._back - count, self._front)
        return (self._back, stop) if self._back < stop else None

    def _from_share(self, count: int) -> Range | None:
        start = self._next_of_cpu
        self._next_of_cpu = min(start + count, self._back)
        return (start, self._next_of_cpu) if start < self._next_of_cpu else None


@final
class IndexSet:
    """A set of indices, kept as ranges in order."""

    def __init__(self, *ranges: Range) -> None:
        self._ranges = sorted(each for each in ranges if each[0] < each[1])

    def __iter__(self) -> Iterator[Range]:
        return iter(self._ranges)

    def __len__(self) -> int:
        """How many indices there are."""
        return sum(stop - start for start, stop in self._ranges)

    def within(self, start: int, stop: int) -> list[Range]:
        """Return the ranges that are here of those from ``start`` up to ``stop``."""
        cut = [(max(low, start), min(high, stop)) for low, high in self._ranges]
        return [each for each in cut if each[0] < each[1]]

    def remove(self, start: int, stop: int) -> list[Range]:
        """Take the indices from ``start`` up to ``stop`` away; return those that were here."""
        found = self.within(start, stop)
        if found:
            below = [(low, min(high, start)) for low, high in self._ranges]
            above = [(max(low, stop), high) for low, high in self._ranges]
            self._ranges = sorted({each for each in (*below, *above) if each[0] < each[1]})
        return found

    def halves(self) -> list[Range]:
        """Return every range in two, where it has two indices."""
        middles = [(start, (start + stop) // 2, stop) for start, stop in self._ranges]
        parts = [part for start, middle, stop in middles for part in ((start, middle), (middle, stop))]
        return [(start, stop) for start, stop in parts if start < stop]
