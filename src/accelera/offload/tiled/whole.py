"""What has no tiled form: operands in several blocks are put together in the pool, if they fit."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from accelera.errors import BudgetExceededError
from accelera.offload.keeping.keeper import Keeper
from accelera.offload.tensors.tensor import OffloadedTensor
from accelera.offload.tiled.operand import is_offloaded, is_tiled
from accelera.offload.tiled.pointwise import all_written, pointwise
from accelera.offload.tiled.results import offloaded
from accelera.units import format_bytes

aten = torch.ops.aten


def whole(func: Any, args: Any, kwargs: Any, keeper: Keeper) -> Any:
    """Carry out ``func`` with every tiled operand in one temporary block.

    Raises BudgetExceededError, naming the operation and the operands, when they do not fit the pool together.
    """
    leaves = [leaf for leaf in tree_leaves((args, kwargs)) if is_offloaded(leaf)]
    copies = {**{id(leaf): leaf for leaf in leaves}, **gathered(str(func), leaves, keeper)}
    whole_args, whole_kwargs = tree_map_only(OffloadedTensor, lambda leaf: copies[id(leaf)], (args, kwargs))
    result = func(*whole_args, **whole_kwargs)
    changed = tree_leaves(all_written(func, args, kwargs))
    for leaf in changed:
        if is_tiled(leaf):
            pointwise(aten.copy_.default, (leaf, copies[id(leaf)]), {}, keeper)
    back = {id(copies[id(leaf)]): leaf for leaf in leaves}
    return tree_map_only(OffloadedTensor, lambda leaf: back.get(id(leaf), leaf), result)


def gathered(op: str, leaves: list[OffloadedTensor], keeper: Keeper) -> dict[int, OffloadedTensor]:
    """Return copies in one block, by identity, of those that are in several.

    Raises BudgetExceededError, naming the operation and the operands, when all do not fit the pool together.
    """
    _check(op, leaves, keeper)
    return {id(leaf): _gathered(leaf, keeper) for leaf in leaves if is_tiled(leaf)}


def _gathered(tensor: OffloadedTensor, keeper: Keeper) -> OffloadedTensor:
    copy = offloaded(keeper, tensor.shape, tensor.dtype, cut=False)
    pointwise(aten.copy_.default, (copy, tensor), {}, keeper)
    return copy


def _check(op: str, leaves: list[OffloadedTensor], keeper: Keeper) -> None:
    tensors = {id(leaf): leaf for leaf in leaves}.values()
    tiled = [leaf for leaf in tensors if is_tiled(leaf)]
    border = max((block.nbytes for leaf in tiled for block in leaf.blocks), default=0)
    needed = sum(leaf.numel() * leaf.element_size() for leaf in tensors) + border
    if needed > keeper.capacity_bytes:
        names = ", ".join(
            f"{leaf.blocks[0].name or 'a tensor'} {tuple(leaf.shape)} of {format_bytes(leaf.nbytes)}"
            for leaf in tiled
        )
        raise BudgetExceededError(
            f"[{op}] {names}: this operation has no form that works on parts, so the tensor must be whole; "
            f"that takes {format_bytes(needed)} and the pool holds {format_bytes(keeper.capacity_bytes)}. "
            f"Offload with a budget that leaves the pool {format_bytes(needed)}",
            needed_bytes=needed,
            budget_bytes=keeper.capacity_bytes,
        )
