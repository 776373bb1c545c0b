"""Pieces of a tile that fit the caches, and a few threads that share them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from types import TracebackType

from accelera.stores import Region

Shape = tuple[int, ...]

PIECE_BYTES = 256 << 10
"""Bytes of one operand that are worked on at a time."""
_EDGE = 128
"""Edge of a piece where operands lie in different orders."""
_RUN = 4096
"""Longest piece along an axis that a reduction keeps: the running states stay in the nearest cache."""


def piece_shape(extent: Shape, orders: Sequence[Shape], reduced: Shape, elements: int) -> Shape:
    """Return the shape of pieces of at most ``elements`` for operands that lie in ``orders``."""
    piece = [1] * len(extent)
    for order in orders:
        if len(orders) > 1:
            piece[order[-1]] = min(_EDGE, extent[order[-1]])
    for axis in reversed(orders[0]):
        room = elements // math.prod(piece)
        longest = _RUN if reduced and axis not in reduced else extent[axis]
        piece[axis] = max(piece[axis], min(extent[axis], longest, piece[axis] * max(room, 1)))
    return tuple(max(each, 1) for each in piece)


def pieces(extent: Shape, shape: Shape) -> list[Region]:
    """Cut a tile of ``extent`` into pieces of ``shape``; none when it is empty."""
    return list(_cut(extent, shape))


def _cut(extent: Shape, shape: Shape) -> Iterator[Region]:
    starts = [range(0, size, part) for size, part in zip(extent, shape, strict=True)]
    for corner in product(*starts):
        yield tuple(
            slice(start, min(start + part, size))
            for start, part, size in zip(corner, shape, extent, strict=True)
        )


class Team:
    """A fixed number of workers, the caller being the first."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._others = ThreadPoolExecutor(size - 1, "accelera-compute") if size > 1 else None

    def share(self, work: Callable[[int], None], count: int) -> None:
        """Call ``work(worker)`` on as many workers as there are pieces, and wait; raise what one raised."""
        if self._others is None or count < 2:
            for worker in range(self.size):
                work(worker)
            return
        waiting = [self._others.submit(work, worker) for worker in range(1, self.size)]
        try:
            work(0)
        finally:
            for each in waiting:
                each.exception()
        for each in waiting:
            each.result()

    def __enter__(self) -> Team:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._others is not None:
            self._others.shutdown()
