"""The probabilities of one tile: products, mask, softmax, and what dropout leaves of them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from accelera.interceptor.attention.operands import Operands
from accelera.interceptor.attention.options import Options, computing_dtype
from accelera.interceptor.attention.tiling import Tile, Tiling, is_ready, part
from accelera.interceptor.broadcasting import contract


class Workspace:
    """Buffers that all tiles of one pass share."""

    def __init__(self, operands: Operands, tiling: Tiling, buffers: int) -> None:
        dtype = computing_dtype(operands.query.dtype)
        size, device = tiling.largest, operands.query.device
        self._buffers = [torch.empty(size, dtype=dtype, device=device) for _ in range(buffers)]

    def __getitem__(self, which: int) -> _Shaped:
        return _Shaped(self._buffers[which])


class _Shaped:
    """One buffer, seen in the shape of a tile."""

    def __init__(self, buffer: torch.Tensor) -> None:
        self._buffer = buffer

    def of(self, tile: Tile) -> torch.Tensor:
        return self._buffer[: math.prod(tile.shape)].view(tile.shape)


def key_blocks(tile: Tile, tiling: Tiling) -> Iterator[slice]:
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
    operands: Operands, options: Options, tiling: Tiling, tile: Tile, workspace: Workspace
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
        _mask(scores, part(operands.mask, tile.box, tile.rows), options.mask_hides)
    if options.is_causal:
        _hide_future(scores, tile.rows.start)
    torch.softmax(scores, -1, out=result)
    _clear_blind_rows(result, scores)
    return result


def dropout_factors(options: Options, tile: Tile, out: torch.Tensor) -> torch.Tensor:
    """Fill ``out`` with zero for what is dropped and ``1 / (1 - dropout)`` for what is kept."""
    generator = torch.Generator(out.device).manual_seed((options.seed + tile.number) % (1 << 63))
    kept = 1 - options.dropout
    return out.bernoulli_(kept, generator=generator).div_(kept)


def _mask(scores: torch.Tensor, mask: torch.Tensor, hides: bool) -> None:
    if hides:
        scores.masked_fill_(mask.to(torch.bool), -math.inf)
    elif mask.dtype == torch.bool:
        scores.masked_fill_(mask.logical_not(), -math.inf)
    else:
        scores.add_(mask)


def _hide_future(scores: torch.Tensor, first_row: int) -> None:
    """Hide from row i the keys after i; those before ``first_row`` every row of the tile sees."""
    corner = scores[..., first_row:]
    if corner.shape[-1]:
        future = torch.ones(corner.shape[-2:], dtype=torch.bool, device=scores.device).triu_(1)
        corner.masked_fill_(future, -math.inf)


def _clear_blind_rows(result: torch.Tensor, scores: torch.Tensor) -> None:
    undefined = result[..., 0].isnan()
    if undefined.any():
        blind = (scores == -math.inf).all(-1).logical_and_(undefined)
        result.masked_fill_(blind.unsqueeze(-1), 0)
