"""Attention: weighted means of values, by how well their keys match the queries."""

from __future__ import annotations

import math
from typing import Any

from accelera.errors import ArgumentError, ShapeError
from accelera.tensora.autograd import is_grad_enabled
from accelera.tensora.core import DType, Tensor, native
from accelera.tensora.manipulation import broadcast_shapes
from accelera.tensora.random import default_generator


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention ``softmax(query @ key.T * scale + attn_mask) @ value``, computed block by block.

    The matrix of weights is never held as a whole, nor in the backward pass (T. Dao et al., "FlashAttention",
    2022). With dropout, or if the mask needs a gradient, single operations compute it and hold all weights.

    Parameters
    ----------
    query
        Of shape ``(..., heads, queries, width)``.
    key
        Of shape ``(..., heads, keys, width)`` and the same type.
    value
        Of shape ``(..., heads, keys, value_width)``. Leading axes are broadcast.
    attn_mask
        Broadcasts to ``(..., heads, queries, keys)``. Either bool, True where a query may attend to a key, or
        numbers that are added to the scores.
    dropout_p
        Probability with which a weight becomes 0; the others are divided by ``1 - dropout_p``.
    is_causal
        Whether query i attends only to the keys 0 to i.
    scale
        ``1 / sqrt(width)`` if None.
    enable_gqa
        Whether `key` and `value` may have fewer heads, each for several neighbouring heads of queries.

    Returns
    -------
    Tensor
        Of shape ``(..., heads, queries, value_width)``; zeros for a query whose keys are all masked.

    Raises
    ------
    ValueError
        If shapes do not fit, both a mask and `is_causal` are given, or `dropout_p` is no probability.
    TypeError
        If the types differ, or are no real floating-point types.

    """
    name = "scaled_dot_product_attention"
    if attn_mask is not None and is_causal:
        raise ArgumentError(f"[{name}] attn_mask and is_causal=True; give one of them")
    if not 0 <= dropout_p <= 1:
        raise ArgumentError(f"[{name}] dropout_p={dropout_p}; give a number between 0 and 1")
    _check_shapes(name, query, key, value)
    factor = 1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else float(scale)
    inputs, lead = _to_batched_heads(name, (query, key, value), enable_gqa)
    mask = _additive_mask(name, attn_mask, (*lead, query.shape[-2], key.shape[-2]), query.dtype)
    if dropout_p or (mask is not None and mask.requires_grad and is_grad_enabled()):
        result = _composed_attention(inputs, mask, factor, is_causal, dropout_p)
    else:
        result = native.attention(*inputs, mask, factor, is_causal)[0]
    return result if len(lead) == 2 else native.reshape(result, (*lead, *result.shape[-2:]))


def _check_shapes(name: str, query: Tensor, key: Tensor, value: Tensor) -> None:
    fits = min(query.ndim, key.ndim, value.ndim) >= 2
    if not fits or query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise ShapeError(
            f"[{name}] query {query.shape}, key {key.shape} and value {value.shape} do not fit; "
            "give (..., queries, width), (..., keys, width) and (..., keys, value width)"
        )


def _to_batched_heads(name: str, given: tuple[Any, ...], grouped: bool) -> tuple[list[Any], tuple[int, ...]]:
    """Return the inputs as (batch, heads, length, width), and the leading axes of the result."""
    tail = -2
    if grouped and min(x.ndim for x in given) > 2:
        tail = -3
        heads = [x.shape[-3] for x in given]
        if heads[1] != heads[2] or heads[1] == 0 or heads[0] % heads[1]:
            raise ArgumentError(
                f"[{name}] {heads[0]} heads of queries, {heads[1]} of keys and {heads[2]} of values; give "
                "as many of keys as of values, and a multiple of them of queries"
            )
    batch = broadcast_shapes(*[tuple(x.shape[:tail]) for x in given])
    if all(x.ndim == 4 and tuple(x.shape[:tail]) == batch for x in given):
        return list(given), (*batch, *given[0].shape[tail:-2])
    made = []
    for x in given:
        own = native.expand(x, (*batch, *x.shape[tail:]))
        heads_of = own.shape[-3] if own.ndim > 2 else 1
        outer = math.prod(own.shape[:-3])
        made.append(native.reshape(own, (outer, heads_of, *x.shape[-2:])))
    return made, (*batch, *given[0].shape[tail:-2])


def _additive_mask(name: str, mask: Tensor | None, shape: tuple[int, ...], dtype: DType) -> Tensor | None:
    """Return the mask as numbers to add to scores; it broadcasts to (batch, heads, queries, keys)."""
    if mask is None:
        return None
    if broadcast_shapes(tuple(mask.shape), shape) != shape:
        raise ShapeError(f"[{name}] a mask of shape {mask.shape} does not broadcast to {shape}")
    if mask.dtype.name == "bool":
        mask = native.where(mask, native.asarray(0.0, dtype), native.asarray(-math.inf, dtype))
    mask = native.cast(mask, dtype)
    if len(shape) <= 4:
        return native.reshape(mask, (*(1,) * (4 - mask.ndim), *mask.shape))
    return native.reshape(native.expand(mask, shape), (-1, *shape[-3:]))


def _composed_attention(
    inputs: list[Any], mask: Tensor | None, scale: float, causal: bool, dropout: float
) -> Tensor:
    query, key, value = inputs
    group = query.shape[1] // max(key.shape[1], 1)
    key, value = (_repeat_heads(x, group) for x in (key, value))
    scores = native.matmul(query, native.permute(key, (0, 1, 3, 2))) * scale
    if causal:
        rows, columns = native.arange(scores.shape[2])[:, None], native.arange(scores.shape[3])
        scores = native.where(columns <= rows, scores, native.asarray(-math.inf, scores.dtype))
    if mask is not None:
        scores = scores + mask
    most = native.max(scores, 3, True).detach()
    weights = native.exp(scores - native.where(native.isinf(most), native.asarray(0.0, most.dtype), most))
    total = native.sum(weights, 3, True)
    weights = weights / native.where(total == 0, native.asarray(1.0, total.dtype), total)
    if dropout:
        kept = default_generator.bernoulli(1 - dropout, tuple(weights.shape))
        weights = weights * native.cast(kept, weights.dtype) * (1 / (1 - dropout) if dropout < 1 else 0.0)
    return native.matmul(weights, value)


def _repeat_heads(x: Tensor, group: int) -> Tensor:
    """Repeat each head `group` times, for grouped queries."""
    batch, heads, length, width = x.shape
    wide = native.expand(x[:, :, None], (batch, heads, group, length, width))
    return native.reshape(wide, (batch, heads * group, length, width))
