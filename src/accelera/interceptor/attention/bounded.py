"""``scaled_dot_product_attention`` in bounded memory, as a function to call."""

from __future__ import annotations

import math

import torch

from accelera.errors import DTypeError, ShapeError
from accelera.interceptor.attention.function import Attention
from accelera.interceptor.attention.operands import Operands, align, ungroup
from accelera.interceptor.attention.options import Options
from accelera.interceptor.broadcasting.product import Empty, plain_empty

TILE_BYTES = 16 << 20
"""Intermediates of one tile when there is room for more: larger ones only leave the processor's caches."""


def bounded_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    scratch_bytes: int = TILE_BYTES,
    empty: Empty = plain_empty,
) -> torch.Tensor:
    """Return ``torch.nn.functional.scaled_dot_product_attention`` of the same arguments.

    Parameters
    ----------
    query, key, value
        ``(..., rows, width)``, ``(..., keys, width)``, ``(..., keys, value_width)`` of one floating dtype;
        the other axes are broadcast.
    mask
        Broadcast to ``(..., rows, keys)``: where it is False the row does not see the key; a floating mask
        is added to the scores and may require a gradient.
    dropout
        Share of the probabilities set to zero, at least 0 and below 1; which ones follows from PyTorch's
        default generator, but not as PyTorch's own operator draws them.
    scratch_bytes
        Most bytes of intermediates beyond the result, forward and backward; one row of scores is always held.
    empty
        Where the result and the gradients come from.

    Raises
    ------
    ShapeError
        When the operands do not fit together.
    DTypeError
        When their types differ or are not floating.
    """
    if not query.is_floating_point() or len({query.dtype, key.dtype, value.dtype}) > 1:
        raise DTypeError(
            f"[attention] query, key and value are {query.dtype}, {key.dtype}, {value.dtype}; "
            "they must have one floating dtype"
        )
    operands = align(query, key, value, mask, enable_gqa)
    if operands is None or (mask is not None and is_causal) or not 0 <= dropout < 1:
        masked = None if mask is None else tuple(mask.shape)
        raise ShapeError(
            f"[attention] query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}, "
            f"mask {masked}, dropout {dropout}: batch axes must broadcast, widths and numbers of keys agree, "
            "nothing be empty, dropout be in [0, 1), and a causal call have no mask"
        )
    options = Options(
        is_causal=is_causal,
        scale=1 / math.sqrt(query.shape[-1]) if scale is None else scale,
        dropout=dropout,
        seed=int(torch.randint(1 << 62, ())) if dropout else 0,
        scratch_bytes=scratch_bytes,
        results=lambda: empty,
    )
    return ungroup(attend(operands, options), enable_gqa)


def attend(operands: Operands, options: Options) -> torch.Tensor:
    """Return attention of aligned operands, differentiable any number of times."""
    result: torch.Tensor = Attention.apply(*operands, options)  # type: ignore[no-untyped-call]
    return result
