"""Tasks in flight that another side takes over when it has nothing else to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from accelera.execution.work.pieces import Side

Range = tuple[int, int]


@final
class Late:
    """What each side has taken, is not through with, and was not overtaken at yet. Not thread-safe."""

    def __init__(self) -> None:
        self._flying: dict[Side, dict[int, int]] = {side: {} for side in Side}
        """Where each piece ends, by where it starts, in the order in which they were taken."""

    def __len__(self) -> int:
        """How many pieces are in flight."""
        return sum(map(len, self._flying.values()))

    def taken(self, side: Side, start: int, stop: int) -> None:
        """Note that ``side`` took the indices from ``start`` up to ``stop``."""
        self._flying[side][start] = stop

    def done(self, start: int, stop: int) -> None:
        """Note that these indices are settled, the first that were left of a piece."""
        for pieces in self._flying.values():
            end = pieces.pop(start, stop)
            if stop < end:
                pieces[stop] = end

    def returned(self, start: int, stop: int) -> None:
        """Note that whoever took these indices is no longer at them."""
        for side, pieces in self._flying.items():
            self._flying[side] = {
                low: high
                for begin, end in pieces.items()
                for low, high in ((begin, min(end, start)), (max(begin, stop), end))
                if low < high
            }

    def take(self, side: Side, count: int, settled: Callable[[int], bool]) -> Range | None:
        """Return up to ``count`` indices that the other side took first and has not done; each once.

        The last of a piece come first: whoever took it begins at its front.
        """
        others = self._flying[Side.GPU if side is Side.CPU else Side.CPU]
        while others:
            start, stop = next(iter(others.items()))
            while stop > start and settled(stop - 1):
                stop -= 1
            first = max(start, stop - max(count, 1))
            while first < stop and settled(first):
                first += 1
            if start < first < stop:
                others[start] = first
            else:
                del others[start]
            if first < stop:
                return first, stop
        return None
