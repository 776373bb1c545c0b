"""Reductions, operators along one axis, and losses: box by box, joined where an axis is cut."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from accelera.offload.block_cache import BlockCache
from accelera.offload.blockwise.elementwise import subparts
from accelera.offload.blockwise.matmul import ACCUMULATED
from accelera.offload.blockwise.run import implements_blockwise
from accelera.offload.op_schema import bound, infer_meta
from accelera.offload.operands import Axes, BlockOperand, boxes, pin_box
from accelera.offload.tensor import empty, new_tensor

Tensor = torch.Tensor


@dataclass(frozen=True)
class BlockReduction:
    """Reduction of one part (reduced axes keep size one), and the operation that joins two results."""

    part: Callable[[Tensor, list[int], torch.dtype], Tensor]
    join: Callable[[Tensor, Tensor], Tensor]
    start: Callable[[torch.dtype], Any]


def _total(part: Tensor, axes: list[int], dtype: torch.dtype) -> Tensor:
    return part.sum(axes, keepdim=True, dtype=dtype)


def _nonzero(part: Tensor, axes: list[int], dtype: torch.dtype) -> Tensor:
    return (part != 0).sum(axes, keepdim=True, dtype=dtype)


def _factors(part: Tensor, axes: list[int], dtype: torch.dtype) -> Tensor:
    for axis in axes:
        part = part.prod(axis, keepdim=True, dtype=dtype)
    return part


def _least(dtype: torch.dtype) -> Any:
    return -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def _greatest(dtype: torch.dtype) -> Any:
    return math.inf if dtype.is_floating_point else torch.iinfo(dtype).max


_ADDED = BlockReduction(_total, torch.add, lambda dtype: 0)

RULES = {
    "sum": _ADDED,
    "mean": _ADDED,
    "count_nonzero": BlockReduction(_nonzero, torch.add, lambda dtype: 0),
    "prod": BlockReduction(_factors, torch.mul, lambda dtype: 1),
    "amax": BlockReduction(lambda part, axes, _: part.amax(axes, keepdim=True), torch.maximum, _least),
    "amin": BlockReduction(lambda part, axes, _: part.amin(axes, keepdim=True), torch.minimum, _greatest),
    "any": BlockReduction(
        lambda part, axes, _: part.any(axes, keepdim=True), torch.logical_or, lambda dtype: False
    ),
    "all": BlockReduction(
        lambda part, axes, _: part.all(axes, keepdim=True), torch.logical_and, lambda dtype: True
    ),
}

RULES |= {"max": RULES["amax"], "min": RULES["amin"]}


@implements_blockwise(*RULES, "norm", "linalg_vector_norm")
def reduction(func: Any, args: Any, kwargs: Any, cache: BlockCache) -> Any:
    """Carry out a reduction along some axes, or along all."""
    name, named = func.overloadpacket.__name__, bound(func, args, kwargs)
    meta, source = infer_meta(func, args, kwargs), named["self"]
    axes = _axes(named.get("dim"), source.ndim)
    rule = _norm(named.get("ord", named.get("p"))) if "norm" in name else RULES[name]
    dtype = ACCUMULATED.get(meta.dtype, meta.dtype)
    reduced = _reduced(cache, source, axes, rule, dtype, str(func))
    if name == "mean":
        reduced /= math.prod(source.shape[axis] for axis in axes)
    result = reduced.reshape(meta.shape).to(meta.dtype)
    return named["out"].copy_(result) if named.get("out") is not None else result


_LIST_REDUCTIONS = {"_foreach_norm": "linalg_vector_norm", "_foreach_max": "max"}


@implements_blockwise(*_LIST_REDUCTIONS)
def reduction_of_list(func: Any, args: Any, kwargs: Any, cache: BlockCache) -> Any:
    """Carry out a reduction of each tensor of a list, the list having one."""
    single = getattr(torch.ops.aten, _LIST_REDUCTIONS[func.overloadpacket.__name__])
    return [single(args[0][0], *args[1:], **kwargs)]


@implements_blockwise("dot", "vdot")
def dot(func: Any, args: Any, kwargs: Any, cache: BlockCache) -> Tensor:
    """Return the inner product of two vectors."""
    operands = [BlockOperand(vector, (0,)) for vector in args]
    dtype = ACCUMULATED.get(args[0].dtype, args[0].dtype)
    total = torch.zeros((), dtype=dtype, device=cache.device)
    for box in boxes(args[0].shape, operands):
        with pin_box(cache, operands, box, str(func)) as parts:
            total += func(*parts)
    return total.to(args[0].dtype)


@implements_blockwise("equal")
def equal(func: Any, args: Any, kwargs: Any, cache: BlockCache) -> bool:
    """Return whether two tensors have the same shape and values."""
    if args[0].shape != args[1].shape:
        return False
    operands = [BlockOperand(tensor, tuple(range(tensor.ndim))) for tensor in args]
    return all(_equal_box(cache, operands, box, str(func)) for box in boxes(args[0].shape, operands))


def _equal_box(cache: BlockCache, operands: list[BlockOperand], box: Any, op: str) -> bool:
    with pin_box(cache, operands, box, op) as (one, other):
        return torch.equal(one, other)


def _axes(dim: Any, ndim: int) -> list[int]:
    if dim is None or dim == []:
        return list(range(ndim))
    return [axis % ndim for axis in ([dim] if isinstance(dim, int) else dim)]


def _norm(order: Any) -> BlockReduction:
    order = 2 if order is None else order
    if order == 0:
        return RULES["count_nonzero"]
    return BlockReduction(
        lambda part, axes, dtype: torch.linalg.vector_norm(part, order, axes, keepdim=True, dtype=dtype),
        lambda one, other: torch.linalg.vector_norm(torch.stack([one, other]), order, 0),
        lambda dtype: math.inf if order < 0 else 0,
    )


def _reduced(
    cache: BlockCache, source: Tensor, axes: list[int], rule: BlockReduction, dtype: torch.dtype, op: str
) -> Tensor:
    sizes = [1 if axis in axes else size for axis, size in enumerate(source.shape)]
    total = torch.full(sizes, rule.start(dtype), dtype=dtype, device=cache.device)
    operands = [BlockOperand(source, tuple(range(source.ndim)))]
    for box in boxes(source.shape, operands):
        with pin_box(cache, operands, box, op) as (part,):
            own = total[tuple(slice(None) if axis in axes else edge for axis, edge in enumerate(box))]
            own.copy_(rule.join(own, rule.part(part, axes, dtype)))
    return total


ALONG = {
    "_softmax",
    "_log_softmax",
    "_softmax_backward_data",
    "_log_softmax_backward_data",
    "argmax",
    "argmin",
    "topk",
    "sort",
    "cumsum",
    "logsumexp",
}
"""Operations with an argument ``dim`` (or one axis only) that each work along it by itself."""


@implements_blockwise(*ALONG, "max.dim", "min.dim")
def along(func: Any, args: Any, kwargs: Any, cache: BlockCache) -> Any:
    """Carry out an operation that works along one axis; None if that axis is cut, so that it cannot."""
    named = bound(func, args, kwargs)
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    source = tensors[0]
    axis = named["dim"][0] if isinstance(named["dim"], list) else named["dim"]
    if axis is None:
        return None
    axis %= source.ndim
    sources = [BlockOperand(tensor, tuple(range(tensor.ndim))) for tensor in tensors]
    if any(box[axis] != slice(0, source.shape[axis]) for box in boxes(source.shape, sources)):
        return None
    return by_rows(func, args, kwargs, cache, sources, axis)


def by_rows(
    func: Any, args: Any, kwargs: Any, cache: BlockCache, sources: list[BlockOperand], axis: int | None
) -> Any:
    """Carry out ``func`` in pieces across all axes but ``axis``; the space is the first source's."""
    meta = infer_meta(func, args, kwargs)
    ndim = sources[0].tensor.ndim
    results = tree_map_only(torch.Tensor, lambda one: _empty_result(cache, one, ndim, axis), meta)
    targets = [_target(one, ndim, axis) for one in tree_leaves(results)]
    operands = [*sources, *targets]
    for box in boxes(sources[0].tensor.shape, operands):
        with pin_box(cache, operands, box, str(func)) as parts:
            for pieces in subparts(operands, parts, 0, whole=axis):
                _piece(func, args, kwargs, pieces, len(sources))
    return results


@implements_blockwise("native_dropout")
def dropout(func: Any, args: Any, kwargs: Any, cache: BlockCache) -> Any:
    """Return the elements that stay and which they are."""
    return by_rows(func, args, kwargs, cache, [BlockOperand(args[0], tuple(range(args[0].ndim)))], None)


def _piece(func: Any, args: Any, kwargs: Any, pieces: list[torch.Tensor], sources: int) -> None:
    given = iter(pieces[:sources])
    args, kwargs = tree_map_only(torch.Tensor, lambda _: next(given), (args, kwargs))
    made = tree_leaves(func(*args, **kwargs))
    for target, one in zip(pieces[sources:], made, strict=True):
        target.copy_(one)


def _empty_result(cache: BlockCache, meta: torch.Tensor, ndim: int, axis: int | None) -> torch.Tensor:
    """Return room for a result: one block if the axis is the first, along which blocks are cut."""
    if axis == 0 and meta.ndim == ndim and meta.nbytes > cache.block_bytes:
        return new_tensor(cache, meta.shape, meta.dtype, cut=False)
    return empty(cache, meta.shape, meta.dtype)


def _target(result: torch.Tensor, ndim: int, axis: int | None) -> BlockOperand:
    axes: list[int | None] = [None if place == axis else place for place in range(ndim)]
    if axis is not None and result.ndim < ndim:
        del axes[axis]
    return BlockOperand(result, tuple(axes), read=False, write=True)


NONE, MEAN, SUM = 0, 1, 2
"""PyTorch's numbers for the reductions of a loss."""


@implements_blockwise("nll_loss_forward")
def nll_loss_forward(func: Any, args: Any, kwargs: Any, cache: BlockCache) -> Any:
    """Return the loss and the total weight of the targets; None if a row of scores is cut."""
    scores, target, weight, reduction, ignored = args
    operands = [_score_rows(scores), BlockOperand(target, (0,)[: target.ndim])]
    if not _whole_rows(scores, operands):
        return None
    inner = NONE if reduction == NONE else SUM
    losses, weights = [], []
    for box in boxes(scores.shape, operands):
        with pin_box(cache, operands, box, str(func)) as (part, wanted):
            loss, total = func(part, wanted, weight, inner, ignored)
        losses.append(loss)
        weights.append(total)
    total = torch.stack(weights).sum()
    if reduction == NONE:
        return torch.cat(losses), weights[0]
    loss = torch.stack(losses).sum()
    return (loss / total if reduction == MEAN else loss), total


@implements_blockwise("nll_loss_backward")
def nll_loss_backward(func: Any, args: Any, kwargs: Any, cache: BlockCache) -> Any:
    """Return the gradient of the scores; None if a row of scores is cut."""
    gradient, scores, target, weight, reduction, ignored, total = args
    result = empty(cache, scores.shape, scores.dtype)
    given: Axes = (0,)[: gradient.ndim]
    operands = [_score_rows(scores), BlockOperand(target, (0,)), BlockOperand(gradient, given)]
    operands.append(BlockOperand(result, (0, 1), read=False, write=True))
    if not _whole_rows(scores, operands):
        return None
    for box in boxes(scores.shape, operands):
        with pin_box(cache, operands, box, str(func)) as (part, wanted, above, out):
            out.copy_(func(above, part, wanted, weight, reduction, ignored, total))
    return result


def _score_rows(scores: torch.Tensor) -> BlockOperand:
    return BlockOperand(scores, tuple(range(scores.ndim)))


def _whole_rows(scores: torch.Tensor, operands: list[BlockOperand]) -> bool:
    classes = slice(0, scores.shape[-1])
    return scores.ndim == 2 and all(box[1] == classes for box in boxes(scores.shape, operands))
