"""From a chunking strategy to the tiles of a product."""

from __future__ import annotations

from accelera.chunking import ChunkingStrategy, Region, covering


def result_tiles(
    strategy: ChunkingStrategy, shape: tuple[int, int], chunk_size: int
) -> list[tuple[slice, slice]]:
    """Return the (rows, columns) of the chunks that ``strategy`` cuts a result of ``shape`` into.

    A product with batch axes is cut in its last two. Raises ShapeError when the chunks do not cover
    the result once.
    """
    return [_rows_and_columns(box) for box in covering(strategy.get_chunks(shape, chunk_size), shape)]


def _rows_and_columns(box: Region) -> tuple[slice, slice]:
    rows, columns = box
    return rows, columns
