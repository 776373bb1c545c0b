"""Operands and options of attention: query, key, value and mask brought to one rank by views."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from accelera.interceptor.attention.gradient_layout import BY_ROWS, Orders
from accelera.interceptor.spill import Empty


class AttentionOperands(NamedTuple):
    """What attention reads, all of one rank; a batch axis has size 1 where an operand lacks it."""

    query: torch.Tensor
    """``(*batch, rows, width)``"""
    key: torch.Tensor
    """``(*batch, keys, width)``"""
    value: torch.Tensor
    """``(*batch, keys, value_width)``"""
    mask: torch.Tensor | None
    """``(*batch, rows or 1, keys or 1)``: False or minus infinity where a row must not see a key."""

    @property
    def batch(self) -> tuple[int, ...]:
        """Batch axes of the result."""
        pairs = zip(self.query.shape[:-2], self.key.shape[:-2], strict=True)
        return tuple(max(pair) for pair in pairs)

    @property
    def rows(self) -> int:
        """Queries per matrix."""
        return self.query.shape[-2]

    @property
    def keys(self) -> int:
        """Keys per matrix."""
        return self.key.shape[-2]

    @property
    def scores(self) -> int:
        """Elements of all scores together."""
        return math.prod(self.batch) * self.rows * self.keys


def align(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    enable_gqa: bool,
) -> AttentionOperands | None:
    """Return views of one rank, or None when the shapes are not such as this package takes.

    With ``enable_gqa`` the heads of the query are split into one axis per head of the key and one of the
    queries that share it.
    """
    if enable_gqa:
        return _grouped(query, key, value, mask)
    rank = max(query.dim(), key.dim(), value.dim())
    tensors = [None if each is None else _of_rank(each, rank) for each in (query, key, value, mask)]
    return _checked(tensors)


def ungroup(result: torch.Tensor, enable_gqa: bool) -> torch.Tensor:
    """Return the result with the heads of the query as one axis again."""
    return result.flatten(-4, -3) if enable_gqa else result


def _grouped(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> AttentionOperands | None:
    if not query.dim() == key.dim() == value.dim() or query.dim() < 3:
        return None
    heads = key.shape[-3]
    if not heads or heads != value.shape[-3] or query.shape[-3] % heads:
        return None
    groups = (heads, query.shape[-3] // heads)
    masked = None if mask is None else _of_rank(mask, query.dim())
    if masked is not None:
        masked = _split_heads(masked, groups)
        if masked is None:
            return None
    return _checked([_split(query, groups), key.unsqueeze(-3), value.unsqueeze(-3), masked])


def _split_heads(mask: torch.Tensor, groups: tuple[int, int]) -> torch.Tensor | None:
    if mask.shape[-3] == 1:
        return _split(mask, (1, 1))
    return _split(mask, groups) if mask.shape[-3] == math.prod(groups) else None


def _split(tensor: torch.Tensor, groups: tuple[int, int]) -> torch.Tensor:
    split: torch.Tensor = tensor.unflatten(-3, groups)  # type: ignore[no-untyped-call]
    return split


def _of_rank(tensor: torch.Tensor, rank: int) -> torch.Tensor:
    while tensor.dim() < rank:
        tensor = tensor.unsqueeze(0)
    return tensor


def _checked(tensors: Sequence[torch.Tensor | None]) -> AttentionOperands | None:
    query, key, value, mask = tensors
    if query is None or key is None or value is None or len({each.dim() for each in (query, key, value)}) > 1:
        return None
    operands = AttentionOperands(query, key, value, mask)
    batch, empty = operands.batch, min(*query.shape, *key.shape, *value.shape) == 0
    fits = (
        query.dim() > 1
        and not empty
        and query.shape[-1] == key.shape[-1]
        and key.shape[-2] == value.shape[-2]
        and all(_broadcasts(each.shape[:-2], batch) for each in (query, key, value))
    )
    if fits and mask is not None:
        fits = _broadcasts(mask.shape, (*batch, operands.rows, operands.keys))
    return operands if fits else None


def _broadcasts(shape: Sequence[int], target: Sequence[int]) -> bool:
    return len(shape) == len(target) and all(
        size in (1, whole) for size, whole in zip(shape, target, strict=True)
    )


@dataclass(frozen=True)
class AttentionOptions:
    """Options of ``scaled_dot_product_attention``, and the memory it may use."""

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
