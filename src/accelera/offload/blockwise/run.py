"""Operators run blockwise: by their registered rule, else on operands gathered in one block."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from accelera.errors import BudgetExceededError
from accelera.offload.block_cache import BlockCache
from accelera.offload.op_schema import schema_of
from accelera.offload.tensor import OffloadedTensor, in_several_blocks, is_offloaded, new_tensor
from accelera.units import format_bytes

BlockwiseRule = Callable[[Any, Any, Any, BlockCache], Any]
"""Carries out an operator on its arguments; returns None when it cannot with these."""

ELEMENTWISE = "elementwise"
"""Stands for all operators that PyTorch tags as element-wise, and for those on lists of tensors."""

_RULES: dict[str, BlockwiseRule] = {}


def implements_blockwise(*names: str) -> Callable[[BlockwiseRule], BlockwiseRule]:
    """Register a function as the rule for operators: ``"max"``, or one overload of it, ``"max.dim"``."""

    def register(rule: BlockwiseRule) -> BlockwiseRule:
        _RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


@functools.cache
def blockwise_rule(func: Any) -> BlockwiseRule | None:
    """Return the rule for ``func``; None when it works only on whole tensors."""
    name = func.overloadpacket.__name__
    found = _RULES.get(f"{name}.{func._overloadname}") or _RULES.get(name)
    if found is None and (is_on_lists(name) or torch.Tag.pointwise in func.tags):
        return _RULES[ELEMENTWISE]
    return found


def is_on_lists(name: str) -> bool:
    """Return whether an operator of this name works on lists of tensors."""
    return name.startswith(("_foreach_", "_fused_", "_amp_foreach_"))


def run(func: Any, args: Any, kwargs: Any, cache: BlockCache) -> Any:
    """Carry out ``func``, some operand or result of which is in several blocks.

    NotImplemented when only the result is, and there is no form that makes it in parts.
    Raises BudgetExceededError when it works only on whole tensors and these do not fit the pool.
    """
    rule = blockwise_rule(func) if _all_strided(args, kwargs) else None
    result = None if rule is None else rule(func, args, kwargs, cache)
    if result is not None:
        return result
    if not any(isinstance(leaf, list) for leaf in tree_leaves(args)):
        result = func.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
    if not any(in_several_blocks(leaf) for leaf in tree_leaves((args, kwargs))):
        return NotImplemented
    return gather_fallback(func, args, kwargs, cache)


def _all_strided(args: Any, kwargs: Any) -> bool:
    leaves = tree_leaves((args, kwargs))
    return all(leaf.layout is torch.strided for leaf in leaves if isinstance(leaf, torch.Tensor))


def gather_fallback(func: Any, args: Any, kwargs: Any, cache: BlockCache) -> Any:
    """Carry out ``func`` with every tiled operand in one temporary block.

    Raises BudgetExceededError, naming the operation and the operands, when they do not fit the pool together.
    """
    leaves = [leaf for leaf in tree_leaves((args, kwargs)) if is_offloaded(leaf)]
    copies = {**{id(leaf): leaf for leaf in leaves}, **gathered(str(func), leaves, cache)}
    whole_args, whole_kwargs = tree_map_only(OffloadedTensor, lambda leaf: copies[id(leaf)], (args, kwargs))
    result = func(*whole_args, **whole_kwargs)
    changed = tree_leaves(schema_of(func).changed(args, kwargs))
    for leaf in changed:
        if in_several_blocks(leaf):
            _copy(leaf, copies[id(leaf)], cache)
    back = {id(copies[id(leaf)]): leaf for leaf in leaves}
    return tree_map_only(OffloadedTensor, lambda leaf: back.get(id(leaf), leaf), result)


def gathered(op: str, leaves: list[OffloadedTensor], cache: BlockCache) -> dict[int, OffloadedTensor]:
    """Return copies in one block, by identity, of those that are in several.

    Raises BudgetExceededError, naming the operation and the operands, when all do not fit the pool together.
    """
    _check_room(op, leaves, cache)
    return {id(leaf): _gathered_copy(leaf, cache) for leaf in leaves if in_several_blocks(leaf)}


def _gathered_copy(tensor: OffloadedTensor, cache: BlockCache) -> OffloadedTensor:
    copy = new_tensor(cache, tensor.shape, tensor.dtype, cut=False)
    _copy(copy, tensor, cache)
    return copy


def _copy(target: OffloadedTensor, source: OffloadedTensor, cache: BlockCache) -> None:
    _RULES[ELEMENTWISE](torch.ops.aten.copy_.default, (target, source), {}, cache)


def _check_room(op: str, leaves: list[OffloadedTensor], cache: BlockCache) -> None:
    tensors = {id(leaf): leaf for leaf in leaves}.values()
    blockwise = [leaf for leaf in tensors if in_several_blocks(leaf)]
    border = max((block.nbytes for leaf in blockwise for block in leaf.blocks), default=0)
    needed = sum(leaf.numel() * leaf.element_size() for leaf in tensors) + border
    if needed > cache.capacity_bytes:
        names = ", ".join(
            f"{leaf.blocks[0].name or 'a tensor'} {tuple(leaf.shape)} of {format_bytes(leaf.nbytes)}"
            for leaf in blockwise
        )
        raise BudgetExceededError(
            f"[{op}] {names}: this operation has no form that works on parts, so the tensor must be whole; "
            f"that takes {format_bytes(needed)} and the pool holds {format_bytes(cache.capacity_bytes)}. "
            f"Offload with a budget that leaves the pool {format_bytes(needed)}",
            needed_bytes=needed,
            budget_bytes=cache.capacity_bytes,
        )
