"""Tiles of the attention scores: their sizes, and the probabilities of one tile."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from accelera.chunking._internal import Region
from accelera.interceptor.attention.operands import AttentionOperands, AttentionOptions, computing_dtype
from accelera.interceptor.contraction import contract

Box = Region
"""One slice per batch axis."""


class ScoreTile(NamedTuple):
    """Scores computed together."""

    number: int
    """Position in the order of work; decides what is dropped."""
    box: Box
    rows: slice
    shape: tuple[int, ...]
    """Sizes of the box, rows, keys."""


@dataclass(frozen=True)
class ScoreTiling:
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

    def __iter__(self) -> Iterator[ScoreTile]:
        number = itertools.count()
        for box in _boxes(self.batch, self.tile_matrices):
            sizes = tuple(axis.stop - axis.start for axis in box)
            for first in range(0, self.rows, self.tile_rows):
                rows = slice(first, min(first + self.tile_rows, self.rows))
                keys = min(self.keys, rows.stop) if self.is_causal else self.keys
                yield ScoreTile(next(number), box, rows, (*sizes, rows.stop - rows.start, keys))

    @property
    def largest(self) -> int:
        """Most scores in one tile."""
        return self.tile_matrices * self.tile_rows * self.keys


def plan_tiles(operands: AttentionOperands, options: AttentionOptions) -> ScoreTiling:
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
    return ScoreTiling(
        batch, rows, keys, options.is_causal, min(matrices, math.prod(batch)), tile_rows, block
    )


def row_bytes(operands: AttentionOperands, options: AttentionOptions) -> int:
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


def _key_block(operands: AttentionOperands, options: AttentionOptions) -> int:
    if is_ready(operands.key) and is_ready(operands.value):
        return operands.keys
    width = max(operands.query.shape[-1], operands.value.shape[-1])
    of_key = 2 * width * computing_dtype(operands.query.dtype).itemsize
    return min(operands.keys, max(1, options.scratch_bytes // 4 // of_key))


def _matrix_bytes(operands: AttentionOperands, block: int) -> int:
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


class ScoreBuffers:
    """Buffers that all tiles of one pass share."""

    def __init__(self, operands: AttentionOperands, tiling: ScoreTiling, buffers: int) -> None:
        dtype = computing_dtype(operands.query.dtype)
        size, device = tiling.largest, operands.query.device
        self._buffers = [torch.empty(size, dtype=dtype, device=device) for _ in range(buffers)]

    def __getitem__(self, which: int) -> _BufferView:
        return _BufferView(self._buffers[which])


class _BufferView:
    """One buffer, seen in the shape of a tile."""

    def __init__(self, buffer: torch.Tensor) -> None:
        self._buffer = buffer

    def of(self, tile: ScoreTile) -> torch.Tensor:
        return self._buffer[: math.prod(tile.shape)].view(tile.shape)


def key_blocks(tile: ScoreTile, tiling: ScoreTiling) -> Iterator[slice]:
    """Yield the keys of ``tile`` in runs that may be converted at once."""
    keys = tile.shape[-1]
    for first in range(0, keys, tiling.key_block):
        yield slice(first, min(first + tiling.key_block, keys))


def ready(tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor`` such that products take it in place: itself, or a converted copy."""
    if is_ready(tensor):
        return tensor
    return tensor.to(computing_dtype(tensor.dtype), memory_format=torch.contiguous_format)


def probabilities(
    operands: AttentionOperands,
    options: AttentionOptions,
    tiling: ScoreTiling,
    tile: ScoreTile,
    workspace: ScoreBuffers,
) -> torch.Tensor:
    """Return the softmax of the scores of ``tile``, ``(*box, rows, keys)``, in the second buffer.

    The first buffer holds the scores and may be used again. A row that sees no key has probability zero
    everywhere, as PyTorch has it.
    """
    scores, result = workspace[0].of(tile), workspace[1].of(tile)
    query, key = ready(part(operands.query, tile.box, tile.rows)), part(operands.key, tile.box)
    for keys in key_blocks(tile, tiling):
        contract(query, ready(key[..., keys, :]).mT, scores[..., keys], alpha=options.scale)
    if operands.mask is not None:
        _apply_mask(scores, part(operands.mask, tile.box, tile.rows), options.mask_hides)
    if options.is_causal:
        _apply_causal_mask(scores, tile.rows.start)
    torch.softmax(scores, -1, out=result)
    _zero_fully_masked_rows(result, scores)
    return result


def dropout_factors(options: AttentionOptions, tile: ScoreTile, out: torch.Tensor) -> torch.Tensor:
    """Fill ``out`` with zero for what is dropped and ``1 / (1 - dropout)`` for what is kept."""
    generator = torch.Generator(out.device).manual_seed((options.seed + tile.number) % (1 << 63))
    kept = 1 - options.dropout
    return out.bernoulli_(kept, generator=generator).div_(kept)


def _apply_mask(scores: torch.Tensor, mask: torch.Tensor, hides: bool) -> None:
    if hides:
        scores.masked_fill_(mask.to(torch.bool), -math.inf)
    elif mask.dtype == torch.bool:
        scores.masked_fill_(mask.logical_not(), -math.inf)
    else:
        scores.add_(mask)


def _apply_causal_mask(scores: torch.Tensor, first_row: int) -> None:
    """Hide from row i the keys after i; those before ``first_row`` every row of the tile sees."""
    corner = scores[..., first_row:]
    if corner.shape[-1]:
        future = torch.ones(corner.shape[-2:], dtype=torch.bool, device=scores.device).triu_(1)
        corner.masked_fill_(future, -math.inf)


def _zero_fully_masked_rows(result: torch.Tensor, scores: torch.Tensor) -> None:
    undefined = result[..., 0].isnan()
    if undefined.any():
        fully_masked = (scores == -math.inf).all(-1).logical_and_(undefined)
        result.masked_fill_(fully_masked.unsqueeze(-1), 0)
