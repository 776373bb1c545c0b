"""Free list: unused memory, kept for the next block of its size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar, final

T = TypeVar("T")


@final
class FreeList(Generic[T]):
    """Pieces of memory by size."""

    def __init__(self) -> None:
        self._kept: dict[int, list[T]] = defaultdict(list)

    def keep(self, nbytes: int, piece: T) -> None:
        """Keep ``piece`` of ``nbytes``."""
        self._kept[nbytes].append(piece)

    def take(self, nbytes: int, ready: Callable[[T], bool] | None = None) -> T | None:
        """Return a piece of exactly ``nbytes``, or None: the newest, or the oldest that is ``ready``.

        Where none is ready, the oldest.
        """
        pieces = self._kept[nbytes]
        if not pieces or ready is None:
            return pieces.pop() if pieces else None
        return pieces.pop(next((i for i, each in enumerate(pieces) if ready(each)), 0))

    def part_with(self, nbytes: int) -> Iterator[tuple[int, T]]:
        """Give up pieces with their sizes, largest first, until ``nbytes`` or more are given up."""
        for size in sorted(self._kept, reverse=True):
            while self._kept[size] and nbytes > 0:
                nbytes -= size
                yield size, self._kept[size].pop()

    def clear(self) -> list[tuple[int, T]]:
        """Give up all."""
        pieces = [(size, each) for size, kept in self._kept.items() for each in kept]
        self._kept.clear()
        return pieces
