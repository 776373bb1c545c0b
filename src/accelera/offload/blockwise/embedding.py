"""Embeddings in blocks: only the blocks that hold a wanted row are touched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from accelera.errors import IndexingError
from accelera.offload.block_cache import BlockCache
from accelera.offload.block_layout import Box
from accelera.offload.blockwise.run import implements_blockwise
from accelera.offload.op_schema import has_bytes
from accelera.offload.operands import BlockOperand, boxes, pin_box, pin_parts
from accelera.offload.tensor import empty

aten = torch.ops.aten


@implements_blockwise("embedding")
def embedding(func: Any, args: Any, kwargs: Any, cache: BlockCache) -> torch.Tensor:
    """Return the rows of a table."""
    table, indices = args[0], args[1]
    return _rows(str(func), table, indices, cache)


@implements_blockwise("index_select")
def index_select(func: Any, args: Any, kwargs: Any, cache: BlockCache) -> torch.Tensor:
    """Return slices of a tensor along one axis."""
    table, axis, indices = args
    picked = _rows(str(func), table.movedim(axis, 0), indices.reshape(-1), cache)
    return picked.movedim(0, axis)


@implements_blockwise("embedding_dense_backward")
def embedding_dense_backward(func: Any, args: Any, kwargs: Any, cache: BlockCache) -> torch.Tensor:
    """Return the gradient of the table, each block from the rows that it gave."""
    gradient, indices, rows, padding, by_frequency = args
    flat, wanted = gradient.reshape(-1, gradient.shape[-1]), indices.reshape(-1)
    if by_frequency:
        flat = flat / wanted.bincount()[wanted][:, None].to(flat.dtype)
    kept = wanted != padding
    result = empty(cache, (rows, flat.shape[1]), gradient.dtype)
    target = BlockOperand(result, (0, 1), read=False, write=True)
    for box in boxes(result.shape, [target]):
        with pin_box(cache, [target], box, str(func)) as (part,):
            here = _true_positions((wanted >= box[0].start) & (wanted < box[0].stop) & kept)
            part.zero_().index_add_(0, wanted[here] - box[0].start, flat[here][:, box[1]])
    return result


@implements_blockwise("embedding_renorm_")
def embedding_renorm_(func: Any, args: Any, kwargs: Any, cache: BlockCache) -> Any:
    """Shorten in place the rows whose norm is above a limit."""
    table, indices, limit, order = args
    operand, wanted = BlockOperand(table, (0, 1), write=True), indices.reshape(-1)
    for box, places in _boxes_with_rows(operand, wanted):
        with pin_box(cache, [operand], box, str(func)) as (part,):
            aten.embedding_renorm_(part, wanted[places] - box[0].start, limit, order)
    return table


def _rows(op: str, table: torch.Tensor, indices: torch.Tensor, cache: BlockCache) -> torch.Tensor:
    flat = indices.reshape(-1)
    _check_indices(op, flat, table.shape[0])
    result = empty(cache, (flat.numel(), *table.shape[1:]), table.dtype)
    axes = tuple(range(table.ndim))
    source, target = BlockOperand(table, axes), BlockOperand(result, axes, write=True)
    for rows in boxes(result.shape, [target]):
        for box, places in _boxes_with_rows(source, flat[rows[0]]):
            columns = _shared_columns(rows, box)
            if columns is not None:
                parts = [(source, (box[0], *columns)), (target, (rows[0], *columns))]
                with pin_parts(cache, parts, op) as (given, taken):
                    taken.index_copy_(0, places, given[flat[rows[0]][places] - box[0].start])
    return result.reshape(*indices.shape, *table.shape[1:])


def _boxes_with_rows(table: BlockOperand, wanted: torch.Tensor) -> Iterator[tuple[Box, torch.Tensor]]:
    """Give the boxes of the table that hold wanted rows, and the places of these among the wanted."""
    for box in boxes(table.tensor.shape, [table]):
        places = _true_positions((wanted >= box[0].start) & (wanted < box[0].stop))
        if places.numel():
            yield box, places


def _true_positions(mask: torch.Tensor) -> torch.Tensor:
    """Return where ``mask`` is true: everywhere, when there are shapes and no values."""
    if not has_bytes(mask):
        return torch.arange(mask.numel(), device=mask.device)
    return mask.nonzero().squeeze(1)


def _shared_columns(one: Box, other: Box) -> Box | None:
    """Return what two boxes share beyond their first axis, or None."""
    pairs = list(zip(one[1:], other[1:], strict=True))
    shared = tuple(slice(max(a.start, b.start), min(a.stop, b.stop)) for a, b in pairs)
    return shared if all(edge.start < edge.stop for edge in shared) else None


def _check_indices(op: str, flat: torch.Tensor, rows: int) -> None:
    if has_bytes(flat) and flat.numel() and not 0 <= int(flat.min()) <= int(flat.max()) < rows:
        raise IndexingError(f"[{op}] indices from {int(flat.min())} to {int(flat.max())} into {rows} rows")
