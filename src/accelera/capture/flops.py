"""Floating-point operations of one operator: torch's formulas, a few added ones, else one per element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

_DATA_MOVEMENT = {
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
    "select_backward",
    "slice_backward",
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
    if name in _FORMULAS:
        return float(_FORMULAS[name](*args))
    formula = flop_registry.get(getattr(function, "_overloadpacket", None))
    if formula is not None:
        return float(formula(*args, **kwargs, out_val=result))
    return 0.0 if name in _DATA_MOVEMENT else float(elements)


def _attention(query: Any, key: Any, value: Any, *_: Any) -> int:
    return int(sdpa_flop_count(query.shape, key.shape, value.shape))  # type: ignore[no-untyped-call]


def _attention_backward(grad: Any, query: Any, key: Any, value: Any, *_: Any) -> int:
    shapes = (grad.shape, query.shape, key.shape, value.shape)
    return int(sdpa_backward_flop_count(*shapes))  # type: ignore[no-untyped-call]


def _matrix_vector(matrix: Any, *_: Any) -> int:
    return 2 * int(matrix.numel())


def _grouped_product(rows: Any, matrices: Any, *_: Any) -> int:
    return 2 * int(rows.numel()) * int(matrices.shape[-1])


def _recurrent_layer(x: Any, from_input: Any, from_hidden: Any, *_: Any) -> int:
    positions = x.numel() // x.shape[-1]
    return 2 * int(positions * (from_input.numel() + from_hidden.numel()))


_FORMULAS: dict[str, Callable[..., int]] = {
    "_grouped_mm": _grouped_product,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "dot": _matrix_vector,
    "mkldnn_rnn_layer": _recurrent_layer,
    "mkldnn_rnn_layer_backward": lambda *args: 2 * _recurrent_layer(*args),
    "mv": _matrix_vector,
}
"""Operators that torch 2.13 has no formula for."""
