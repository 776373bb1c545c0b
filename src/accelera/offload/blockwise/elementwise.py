"""Element-wise operators, new tensors, and concatenation, box by box, with PyTorch's own kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from accelera.offload.block_cache import BlockCache
from accelera.offload.block_layout import Box, whole_box
from accelera.offload.blockwise.run import ELEMENTWISE, implements_blockwise
from accelera.offload.op_schema import bound, infer_meta, schema_of, written
from accelera.offload.operands import BlockOperand, boxes, broadcast_axes, pin_box
from accelera.offload.tensor import empty

aten = torch.ops.aten

PIECE_BYTES = 2 << 20
"""A result that is computed before it is stored is computed in pieces of this size."""


_NOT_TAGGED = [
    "copy_",
    "_to_copy",
    "clone",
    "zero_",
    "fill_",
    "masked_fill_",
    "masked_fill",
    "normal_",
    "uniform_",
    "bernoulli_",
    "exponential_",
    "random_",
    "cauchy_",
    "log_normal_",
    "geometric_",
]
"""Work element by element although PyTorch does not tag them so."""

_LIKE = [
    "zeros_like",
    "ones_like",
    "full_like",
    "empty_like",
    "rand_like",
    "randn_like",
    "new_zeros",
    "new_ones",
    "new_full",
    "new_empty",
]


@implements_blockwise(ELEMENTWISE, *_NOT_TAGGED, "max.other", "min.other", "max.out", "min.out")
def pointwise(func: Any, args: Any, kwargs: Any, cache: BlockCache) -> Any:
    """Carry out an element-wise ``func``; what it changes in place is given back.

    None if it has several results.
    """
    if len(func._schema.returns) > 1:
        return None
    changed = written(func, args, kwargs)
    if changed is not None:
        _run(func, args, kwargs, cache, _only(changed), stored=False)
        return changed
    meta = infer_meta(func, args, kwargs)
    result = empty(cache, _only(meta).shape, _only(meta).dtype)
    _run(func, args, kwargs, cache, result, stored=True)
    return [result] if isinstance(meta, list) else result


def _run(func: Any, args: Any, kwargs: Any, cache: BlockCache, target: torch.Tensor, *, stored: bool) -> None:
    leaves, form = tree_flatten((args, kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    changed = {id(leaf) for leaf in tree_leaves(schema_of(func).changed(args, kwargs))}
    operands = [_operand(leaves[place], target, id(leaves[place]) in changed) for place in places]
    operands.append(BlockOperand(target, tuple(range(target.ndim)), read=not stored, write=True))
    for box in boxes(target.shape, operands):
        with pin_box(cache, operands, box, str(func)) as parts:
            for pieces in subparts(operands, parts, len(parts) - 1) if stored else [parts]:
                for place, piece in zip(places, pieces, strict=False):
                    leaves[place] = piece
                inner_args, inner_kwargs = tree_unflatten(leaves, form)
                result = func(*inner_args, **inner_kwargs)
                if stored:
                    pieces[-1].copy_(_only(result))


def _operand(tensor: torch.Tensor, target: torch.Tensor, changes: bool) -> BlockOperand:
    return BlockOperand(tensor, broadcast_axes(tensor.shape, target.ndim), write=changes)


def _only(value: Any) -> Any:
    """Return the tensor, or the only one of a list."""
    return value[0] if isinstance(value, (list, tuple)) else value


def subparts(
    operands: list[BlockOperand], parts: list[torch.Tensor], leader: int, whole: int | None = None
) -> Iterator[list[torch.Tensor]]:
    """Cut a box further, so that what is computed before it is stored is small; axis ``whole`` is not cut.

    The axes of the operand ``leader`` are those of the space.
    """
    space = parts[leader]
    axes = [axis for axis in range(space.ndim) if axis != whole]
    if space.nbytes <= PIECE_BYTES or not axes:
        yield parts
        return
    axis = max(axes, key=space.shape.__getitem__)
    step = max(1, PIECE_BYTES * space.shape[axis] // space.nbytes)
    for start in range(0, space.shape[axis], step):
        edge = slice(start, min(start + step, space.shape[axis]))
        box = whole_box(space.shape)
        cut: Box = (*box[:axis], edge, *box[axis + 1 :])
        yield [_subpart(one, part, cut) for one, part in zip(operands, parts, strict=True)]


def _subpart(operand: BlockOperand, part: torch.Tensor, cut: Box) -> torch.Tensor:
    edges = [slice(None) if axis is None else cut[axis] for axis in operand.axes]
    return part[tuple(edges)]


@implements_blockwise(*_LIKE)
def new_like(func: Any, args: Any, kwargs: Any, cache: BlockCache) -> Any:
    """Carry out ``zeros_like``, ``new_full`` and their like."""
    meta = infer_meta(func, args, kwargs)
    result = empty(cache, meta.shape, meta.dtype)
    name = func.overloadpacket.__name__
    if "zeros" in name:
        return pointwise(aten.zero_.default, (result,), {}, cache)
    if "ones" in name:
        return pointwise(aten.fill_.Scalar, (result, 1), {}, cache)
    if "full" in name:
        return pointwise(aten.fill_.Scalar, (result, kwargs.get("fill_value", args[-1])), {}, cache)
    if "randn" in name:
        return pointwise(aten.normal_.default, (result,), {}, cache)
    if "rand" in name:
        return pointwise(aten.uniform_.default, (result,), {}, cache)
    return result


@implements_blockwise("cat")
def cat(func: Any, args: Any, kwargs: Any, cache: BlockCache) -> torch.Tensor:
    """Return tensors one after another along an axis."""
    named = bound(func, args, kwargs)
    meta = infer_meta(func, args, kwargs)
    result, start = empty(cache, meta.shape, meta.dtype), 0
    for tensor in named["tensors"]:
        if tensor.ndim == meta.ndim:
            count = tensor.shape[named["dim"]]
            aten.copy_(aten.slice(result, named["dim"], start, start + count), tensor)
            start += count
    return result


@implements_blockwise("stack")
def stack(func: Any, args: Any, kwargs: Any, cache: BlockCache) -> torch.Tensor:
    """Return tensors side by side along a new axis."""
    named = bound(func, args, kwargs)
    meta = infer_meta(func, args, kwargs)
    result = empty(cache, meta.shape, meta.dtype)
    for index, tensor in enumerate(named["tensors"]):
        aten.copy_(aten.select(result, named["dim"], index), tensor)
    return result


@implements_blockwise("slice_backward")
def slice_backward(func: Any, args: Any, kwargs: Any, cache: BlockCache) -> torch.Tensor:
    """Return zeros that hold the gradient of a slice."""
    gradient, sizes, dim, start, end, step = args
    result = _zeros(cache, sizes, gradient.dtype)
    aten.copy_(aten.slice(result, dim, start, end, step), gradient)
    return result


@implements_blockwise("select_backward")
def select_backward(func: Any, args: Any, kwargs: Any, cache: BlockCache) -> torch.Tensor:
    """Return zeros that hold the gradient of one index."""
    gradient, sizes, dim, index = args
    result = _zeros(cache, sizes, gradient.dtype)
    aten.copy_(aten.select(result, dim, index), gradient)
    return result


@implements_blockwise("_unsafe_view")
def unsafe_view(func: Any, args: Any, kwargs: Any, cache: BlockCache) -> torch.Tensor:
    """Return the same elements in another shape."""
    view: torch.Tensor = aten.view(*args)
    return view


def _zeros(cache: BlockCache, sizes: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    zeros: torch.Tensor = aten.zero_(empty(cache, sizes, dtype))
    return zeros
