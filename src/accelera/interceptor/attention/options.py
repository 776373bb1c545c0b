"""How attention is to be computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from accelera.interceptor.attention.layout import BY_ROWS, Orders
from accelera.interceptor.broadcasting.product import Empty


@dataclass(frozen=True)
class Options:
    """What ``scaled_dot_product_attention`` was told, and the room there is for it."""

    is_causal: bool
    """Whether row i sees only the keys 0 … i."""
    scale: float
    """What scores are multiplied by before the softmax."""
    dropout: float
    """Share of the probabilities that are set to zero, below 1."""
    seed: int
    """Decides which: the same seed drops the same ones, forward and backward."""
    scratch_bytes: int
    """Most bytes of one tile's intermediates."""
    results: Callable[[], Empty]
    """Returns, for one pass, where its result or its gradients come from."""
    mask_hides: bool = False
    """Whether the mask is not zero where a row must not see a key, as the fast path of heads has it."""
    gradient_orders: Orders = BY_ROWS
    """How the gradients lie in memory."""
    on_cpu: bool = False
    """Whether operands of an accelerator, which had no memory left, are computed with on the CPU."""


def computing_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type that scores of operands of ``dtype`` have: single precision for 16-bit operands."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
