"""Which scores are computed at a time: some matrices of the batch, some rows of each, all keys they see."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from accelera.chunking import Region
from accelera.interceptor.attention.operands import Operands
from accelera.interceptor.attention.options import Options, computing_dtype

Box = Region
"""One slice per batch axis."""


class Tile(NamedTuple):
    """Scores computed together."""

    number: int
    """Position in the order of work; decides what is dropped."""
    box: Box
    rows: slice
    shape: tuple[int, ...]
    """Sizes of the box, rows, keys."""


@dataclass(frozen=True)
class Tiling:
    """All scores of an attention, cut into tiles that fit the room for intermediates."""

    batch: tuple[int, ...]
    rows: int
    keys: int
    is_causal: bool
    tile_matrices: int
    """Matrices of the batch in one tile."""
    tile_rows: int
    """Rows of each matrix in one tile."""
    key_block: int
    """Keys that are converted at a time when keys and values cannot be used as they are."""

    def __iter__(self) -> Iterator[Tile]:
        number = itertools.count()
        for box in _boxes(self.batch, self.tile_matrices):
            sizes = tuple(axis.stop - axis.start for axis in box)
            for first in range(0, self.rows, self.tile_rows):
                rows = slice(first, min(first + self.tile_rows, self.rows))
                keys = min(self.keys, rows.stop) if self.is_causal else self.keys
                yield Tile(next(number), box, rows, (*sizes, rows.stop - rows.start, keys))

    @property
    def largest(self) -> int:
        """Most scores in one tile."""
        return self.tile_matrices * self.tile_rows * self.keys


def plan_tiles(operands: Operands, options: Options) -> Tiling:
    """Return the largest tiles whose intermediates, forward and backward, fit ``options.scratch_bytes``.

    One row of one matrix is always done at a time, whatever that takes.
    """
    batch, rows, keys = operands.batch, operands.rows, operands.keys
    block = _key_block(operands, options)
    of_row, of_matrix = row_bytes(operands, options), _matrix_bytes(operands, block)
    tile_rows = min(rows, max(1, (options.scratch_bytes - of_matrix) // of_row))
    matrices = 1
    if tile_rows == rows:
        matrices = max(1, options.scratch_bytes // (rows * of_row + of_matrix))
    return Tiling(batch, rows, keys, options.is_causal, min(matrices, math.prod(batch)), tile_rows, block)


def row_bytes(operands: Operands, options: Options) -> int:
    """Return the bytes of intermediates that one row of one matrix takes in the backward pass."""
    element = computing_dtype(operands.query.dtype).itemsize
    per_key = 2 * element + 1
    if options.dropout:
        per_key += element
    mask = operands.mask
    if mask is not None and mask.dtype != torch.bool:
        per_key += element
    widths = operands.query.shape[-1] + operands.value.shape[-1]
    return operands.keys * per_key + 2 * widths * element


def is_ready(tensor: torch.Tensor) -> bool:
    """Return whether products can take ``tensor`` as it is: by its type and its strides."""
    plain = 1 in tensor.stride()[-2:] and 0 not in tensor.stride()[-2:]
    return plain and computing_dtype(tensor.dtype) == tensor.dtype


def part(tensor: torch.Tensor, box: Box, rows: slice = slice(None)) -> torch.Tensor:
    """Return a view of the matrices in ``box``, of all axes that ``tensor`` has, and their ``rows``."""
    everything = slice(None)
    pairs = zip(tensor.shape[:-2], box, strict=True)
    taken = [everything if size == 1 else axis for size, axis in pairs]
    taken.append(everything if tensor.shape[-2] == 1 else rows)
    return tensor[tuple(taken)]


def _key_block(operands: Operands, options: Options) -> int:
    if is_ready(operands.key) and is_ready(operands.value):
        return operands.keys
    width = max(operands.query.shape[-1], operands.value.shape[-1])
    of_key = 2 * width * computing_dtype(operands.query.dtype).itemsize
    return min(operands.keys, max(1, options.scratch_bytes // 4 // of_key))


def _matrix_bytes(operands: Operands, block: int) -> int:
    if is_ready(operands.key) and is_ready(operands.value):
        return 0
    width = max(operands.query.shape[-1], operands.value.shape[-1])
    return 2 * block * width * computing_dtype(operands.query.dtype).itemsize


def _boxes(batch: tuple[int, ...], matrices: int) -> Iterator[Box]:
    """Cut the batch into boxes of at most ``matrices``: whole trailing axes, a run of one, single leading."""
    steps = []
    for size in reversed(batch):
        step = min(size, max(1, matrices))
        matrices //= size
        steps.append(step)
    ranges = [
        [slice(first, min(first + step, size)) for first in range(0, size, step)]
        for size, step in zip(batch, reversed(steps), strict=True)
    ]
    yield from itertools.product(*ranges)
