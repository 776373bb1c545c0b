"""Indices as ranges, from which done ones are taken away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from accelera.execution.cluster.contract import Range


@final
class Ranges:
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
