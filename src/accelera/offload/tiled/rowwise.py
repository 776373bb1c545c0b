"""Operations along one axis, whole in every block, with nothing between the other axes."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from accelera.offload.keeping.keeper import Keeper
from accelera.offload.tiled.held import held
from accelera.offload.tiled.meta import bound, foretold
from accelera.offload.tiled.pointwise import subparts
from accelera.offload.tiled.results import empty, offloaded
from accelera.offload.tiled.space import Operand, boxes

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


def along(func: Any, args: Any, kwargs: Any, keeper: Keeper) -> Any:
    """Carry out an operation that works along one axis; None if that axis is cut, so that it cannot."""
    named = bound(func, args, kwargs)
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    source = tensors[0]
    axis = named["dim"][0] if isinstance(named["dim"], list) else named["dim"]
    if axis is None:
        return None
    axis %= source.ndim
    sources = [Operand(tensor, tuple(range(tensor.ndim))) for tensor in tensors]
    if any(box[axis] != slice(0, source.shape[axis]) for box in boxes(source.shape, sources)):
        return None
    return by_rows(func, args, kwargs, keeper, sources, axis)


def by_rows(
    func: Any, args: Any, kwargs: Any, keeper: Keeper, sources: list[Operand], axis: int | None
) -> Any:
    """Carry out ``func`` in pieces across all axes but ``axis``; the space is the first source's."""
    told = foretold(func, args, kwargs)
    ndim = sources[0].tensor.ndim
    results = tree_map_only(torch.Tensor, lambda one: _made(keeper, one, ndim, axis), told)
    targets = [_target(one, ndim, axis) for one in tree_leaves(results)]
    operands = [*sources, *targets]
    for box in boxes(sources[0].tensor.shape, operands):
        with held(keeper, operands, box, str(func)) as parts:
            for pieces in subparts(operands, parts, 0, whole=axis):
                _piece(func, args, kwargs, pieces, len(sources))
    return results


def _piece(func: Any, args: Any, kwargs: Any, pieces: list[torch.Tensor], sources: int) -> None:
    given = iter(pieces[:sources])
    args, kwargs = tree_map_only(torch.Tensor, lambda _: next(given), (args, kwargs))
    made = tree_leaves(func(*args, **kwargs))
    for target, one in zip(pieces[sources:], made, strict=True):
        target.copy_(one)


def _made(keeper: Keeper, told: torch.Tensor, ndim: int, axis: int | None) -> torch.Tensor:
    """Return room for a result: one block if the axis is the first, along which blocks are cut."""
    if axis == 0 and told.ndim == ndim and told.nbytes > keeper.block_bytes:
        return offloaded(keeper, told.shape, told.dtype, cut=False)
    return empty(keeper, told.shape, told.dtype)


def _target(result: torch.Tensor, ndim: int, axis: int | None) -> Operand:
    axes: list[int | None] = [None if place == axis else place for place in range(ndim)]
    if axis is not None and result.ndim < ndim:
        del axes[axis]
    return Operand(result, tuple(axes), read=False, write=True)
