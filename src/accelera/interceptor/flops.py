"""Floating-point operations of one operator: torch's own formulas, else one per element."""

from __future__ import annotations

from typing import Any

from torch.utils.flop_counter import flop_registry

_MOVES = {
    "_local_scalar_dense",
    "_pin_memory",
    "_to_copy",
    "arange",
    "bernoulli_",
    "cat",
    "clone",
    "constant_pad_nd",
    "copy_",
    "embedding",
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "equal",
    "eye",
    "fill_",
    "flip",
    "full",
    "full_like",
    "gather",
    "index",
    "index_select",
    "lift",
    "lift_fresh",
    "masked_fill",
    "masked_fill_",
    "masked_select",
    "new_empty",
    "new_empty_strided",
    "new_full",
    "new_ones",
    "new_zeros",
    "nonzero",
    "ones",
    "ones_like",
    "repeat",
    "repeat_interleave",
    "roll",
    "scalar_tensor",
    "scatter",
    "slice_backward",
    "select_backward",
    "split_with_sizes_copy",
    "stack",
    "tril",
    "triu",
    "where",
    "zero_",
    "zeros",
    "zeros_like",
}
"""Operators that only move or set elements."""


def flops_of(function: Any, name: str, args: Any, kwargs: Any, result: Any, elements: int) -> float:
    """Return the floating-point operations of one call.

    Parameters
    ----------
    name
        The operator's name without its namespace.
    elements
        Elements of its largest operand or result.
    """
    formula = flop_registry.get(getattr(function, "_overloadpacket", None))
    if formula is not None:
        return float(formula(*args, **kwargs, out_val=result))
    return 0.0 if name in _MOVES else float(elements)
