"""Element by element, box by box: the kernel is PyTorch's own, so the bits are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from accelera.offload.keeping.keeper import Keeper
from accelera.offload.tiled.held import held
from accelera.offload.tiled.layout import Box, whole_box
from accelera.offload.tiled.meta import bound, foretold
from accelera.offload.tiled.results import empty
from accelera.offload.tiled.space import Operand, boxes, broadcast_axes

PIECE_BYTES = 2 << 20
"""A result that is computed before it is stored is computed in pieces of this size."""


def pointwise(func: Any, args: Any, kwargs: Any, keeper: Keeper) -> Any:
    """Carry out an element-wise ``func``; what it changes in place is given back.

    None if it has several results.
    """
    if len(func._schema.returns) > 1:
        return None
    changed = written(func, args, kwargs)
    if changed is not None:
        _run(func, args, kwargs, keeper, _only(changed), stored=False)
        return changed
    told = foretold(func, args, kwargs)
    result = empty(keeper, _only(told).shape, _only(told).dtype)
    _run(func, args, kwargs, keeper, result, stored=True)
    return [result] if isinstance(told, list) else result


def written(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the first argument that ``func`` changes, or None."""
    return next(iter(all_written(func, args, kwargs)), None)


def all_written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """Return the arguments that ``func`` changes, tensors and lists of tensors."""
    named = bound(func, args, kwargs)
    arguments = [
        one for one in func._schema.arguments if one.alias_info is not None and one.alias_info.is_write
    ]
    return [named[one.name] for one in arguments if named[one.name] is not None]


def _run(func: Any, args: Any, kwargs: Any, keeper: Keeper, target: torch.Tensor, *, stored: bool) -> None:
    leaves, form = tree_flatten((args, kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    changed = {id(leaf) for leaf in tree_leaves(all_written(func, args, kwargs))}
    operands = [_operand(leaves[place], target, id(leaves[place]) in changed) for place in places]
    operands.append(Operand(target, tuple(range(target.ndim)), read=not stored, write=True))
    for box in boxes(target.shape, operands):
        with held(keeper, operands, box, str(func)) as parts:
            for pieces in subparts(operands, parts, len(parts) - 1) if stored else [parts]:
                for place, piece in zip(places, pieces, strict=False):
                    leaves[place] = piece
                inner_args, inner_kwargs = tree_unflatten(leaves, form)
                result = func(*inner_args, **inner_kwargs)
                if stored:
                    pieces[-1].copy_(_only(result))


def _operand(tensor: torch.Tensor, target: torch.Tensor, changes: bool) -> Operand:
    return Operand(tensor, broadcast_axes(tensor.shape, target.ndim), write=changes)


def _only(value: Any) -> Any:
    """Return the tensor, or the only one of a list."""
    return value[0] if isinstance(value, (list, tuple)) else value


def subparts(
    operands: list[Operand], parts: list[torch.Tensor], leader: int, whole: int | None = None
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
        yield [_sub(one, part, cut) for one, part in zip(operands, parts, strict=True)]


def _sub(operand: Operand, part: torch.Tensor, cut: Box) -> torch.Tensor:
    edges = [slice(None) if axis is None else cut[axis] for axis in operand.axes]
    return part[tuple(edges)]
