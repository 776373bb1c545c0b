"""Attention tile by tile, whatever the budget: the function behind the route, called by itself."""

from __future__ import annotations

import math
from typing import Any

import torch

from accelera.interceptor.attention.kernels import attend
from accelera.interceptor.attention.operands import AttentionOptions, align, ungroup
from accelera.interceptor.batched_matmul import plain_empty


def bounded_attention(
    *tensors: Any, scratch_bytes: int, scale: float | None = None, enable_gqa: bool = False, **told: Any
) -> torch.Tensor:
    """Return attention of query, key, value and mask with intermediates of at most ``scratch_bytes``."""
    query, key, value, mask = (*tensors, None)[:4]
    operands = align(query, key, value, mask, enable_gqa)
    assert operands is not None, "the operands fit together"
    dropout = told.get("dropout", 0.0)
    options = AttentionOptions(
        is_causal=told.get("is_causal", False),
        scale=1 / math.sqrt(query.shape[-1]) if scale is None else scale,
        dropout=dropout,
        seed=int(torch.randint(1 << 62, ())) if dropout else 0,
        scratch_bytes=scratch_bytes,
        results=lambda: plain_empty,
    )
    return ungroup(attend(operands, options), enable_gqa)
