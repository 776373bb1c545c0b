"""Chunks of whole rows, all of the same height but the last."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from accelera.chunking.contract import Chunk, ChunkingStrategy, check_cut


@final
class RowChunking(ChunkingStrategy):
    """Take ``chunk_size`` entries of the first axis at a time, the other axes whole.

    >>> [chunk[0] for chunk in RowChunking().get_chunks((10, 4), 4)]
    [slice(0, 4, None), slice(4, 8, None), slice(8, 10, None)]
    """

    def get_chunks(self, shape: tuple[int, ...], chunk_size: int) -> Iterator[Chunk]:
        """Yield ``(rows, all, …)``; raises ShapeError for a shape without axes."""
        check_cut(self, shape, chunk_size, axes=1)
        rest = (slice(None),) * (len(shape) - 1)
        starts = range(0, shape[0], chunk_size)
        return ((slice(start, min(start + chunk_size, shape[0])), *rest) for start in starts)
