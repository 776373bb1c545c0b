"""Rectangular chunks of the first two axes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import final

from accelera.chunking.contract import Chunk, ChunkingStrategy, check_cut
from accelera.errors import ShapeError


@final
class TileChunking(ChunkingStrategy):
    """Take tiles of ``tile_size`` (rows, columns), row of tiles by row of tiles.

    Without a ``tile_size`` the tiles are ``chunk_size`` square.

    >>> strategy = TileChunking(tile_size=(2, 3))
    >>> [(r.start, r.stop, c.start, c.stop) for r, c in strategy.get_chunks((2, 4), 1)]
    [(0, 2, 0, 3), (0, 2, 3, 4)]
    """

    def __init__(self, tile_size: tuple[int, int] | None = None) -> None:
        if tile_size is not None and [size >= 1 for size in tile_size] != [True, True]:
            raise ShapeError(f"[chunking] tile_size={tile_size!r} must be (rows, columns), both at least 1")
        self.tile_size = tile_size

    def get_chunks(self, shape: tuple[int, ...], chunk_size: int) -> Iterator[Chunk]:
        """Yield ``(rows, columns, all, …)``; raises ShapeError for fewer than two axes."""
        check_cut(self, shape, chunk_size, axes=2)
        sizes = self.tile_size or (chunk_size, chunk_size)
        rest = (slice(None),) * (len(shape) - 2)
        return (
            (
                slice(row, min(row + sizes[0], shape[0])),
                slice(column, min(column + sizes[1], shape[1])),
                *rest,
            )
            for row, column in product(range(0, shape[0], sizes[0]), range(0, shape[1], sizes[1]))
        )
