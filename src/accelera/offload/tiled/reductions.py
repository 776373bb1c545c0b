"""Reductions of tensors in several blocks: parts are reduced where they lie, then joined."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from accelera.offload.keeping.keeper import Keeper
from accelera.offload.tiled.held import held
from accelera.offload.tiled.meta import bound, foretold
from accelera.offload.tiled.products import ACCUMULATED
from accelera.offload.tiled.space import Operand, boxes

Tensor = torch.Tensor


@dataclass(frozen=True)
class Rule:
    """How a part is reduced along axes that it keeps with size one, and how two results are joined."""

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


SUM = Rule(_total, torch.add, lambda dtype: 0)
RULES = {
    "sum": SUM,
    "mean": SUM,
    "count_nonzero": Rule(_nonzero, torch.add, lambda dtype: 0),
    "prod": Rule(_factors, torch.mul, lambda dtype: 1),
    "amax": Rule(lambda part, axes, _: part.amax(axes, keepdim=True), torch.maximum, _least),
    "amin": Rule(lambda part, axes, _: part.amin(axes, keepdim=True), torch.minimum, _greatest),
    "any": Rule(lambda part, axes, _: part.any(axes, keepdim=True), torch.logical_or, lambda dtype: False),
    "all": Rule(lambda part, axes, _: part.all(axes, keepdim=True), torch.logical_and, lambda dtype: True),
}
RULES |= {"max": RULES["amax"], "min": RULES["amin"]}


def reduction(func: Any, args: Any, kwargs: Any, keeper: Keeper) -> Any:
    """Carry out a reduction along some axes, or along all."""
    name, named = func.overloadpacket.__name__, bound(func, args, kwargs)
    told, source = foretold(func, args, kwargs), named["self"]
    axes = _axes(named.get("dim"), source.ndim)
    rule = _norm(named.get("ord", named.get("p"))) if "norm" in name else RULES[name]
    dtype = ACCUMULATED.get(told.dtype, told.dtype)
    reduced = _reduced(keeper, source, axes, rule, dtype, str(func))
    if name == "mean":
        reduced /= math.prod(source.shape[axis] for axis in axes)
    result = reduced.reshape(told.shape).to(told.dtype)
    return named["out"].copy_(result) if named.get("out") is not None else result


def dot(func: Any, args: Any, kwargs: Any, keeper: Keeper) -> Tensor:
    """Return the inner product of two vectors."""
    operands = [Operand(vector, (0,)) for vector in args]
    dtype = ACCUMULATED.get(args[0].dtype, args[0].dtype)
    total = torch.zeros((), dtype=dtype, device=keeper.device)
    for box in boxes(args[0].shape, operands):
        with held(keeper, operands, box, str(func)) as parts:
            total += func(*parts)
    return total.to(args[0].dtype)


def equal(func: Any, args: Any, kwargs: Any, keeper: Keeper) -> bool:
    """Whether two tensors have the same shape and values."""
    if args[0].shape != args[1].shape:
        return False
    operands = [Operand(tensor, tuple(range(tensor.ndim))) for tensor in args]
    return all(_equal_box(keeper, operands, box, str(func)) for box in boxes(args[0].shape, operands))


def _equal_box(keeper: Keeper, operands: list[Operand], box: Any, op: str) -> bool:
    with held(keeper, operands, box, op) as (one, other):
        return torch.equal(one, other)


def _axes(dim: Any, ndim: int) -> list[int]:
    if dim is None or dim == []:
        return list(range(ndim))
    return [axis % ndim for axis in ([dim] if isinstance(dim, int) else dim)]


def _norm(order: Any) -> Rule:
    order = 2 if order is None else order
    if order == 0:
        return RULES["count_nonzero"]
    return Rule(
        lambda part, axes, dtype: torch.linalg.vector_norm(part, order, axes, keepdim=True, dtype=dtype),
        lambda one, other: torch.linalg.vector_norm(torch.stack([one, other]), order, 0),
        lambda dtype: math.inf if order < 0 else 0,
    )


def _reduced(
    keeper: Keeper, source: Tensor, axes: list[int], rule: Rule, dtype: torch.dtype, op: str
) -> Tensor:
    sizes = [1 if axis in axes else size for axis, size in enumerate(source.shape)]
    total = torch.full(sizes, rule.start(dtype), dtype=dtype, device=keeper.device)
    operands = [Operand(source, tuple(range(source.ndim)))]
    for box in boxes(source.shape, operands):
        with held(keeper, operands, box, op) as (part,):
            own = total[tuple(slice(None) if axis in axes else edge for axis, edge in enumerate(box))]
            own.copy_(rule.join(own, rule.part(part, axes, dtype)))
    return total
