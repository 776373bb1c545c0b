"""Operands and options of attention: query, key, value and mask of one rank, and how their gradients lie.

The memory order of a gradient is that of PyTorch's own composition of products and a softmax. It depends on
ranks, on sizes that are one and on the operands' strides in ways that no short rule covers, so torch is
asked: it differentiates attention of two rows and two keys, strides ordered as the operands' are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from accelera.interceptor.hooks import passing
from accelera.interceptor.spill import Empty


class AttentionOperands(NamedTuple):
    """Operands of attention, all of one rank; a batch axis has size 1 where an operand lacks it."""

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
        return _align_grouped(query, key, value, mask)
    rank = max(query.dim(), key.dim(), value.dim())
    tensors = [None if each is None else _with_leading_axes(each, rank) for each in (query, key, value, mask)]
    return _checked(tensors)


def ungroup(result: torch.Tensor, enable_gqa: bool) -> torch.Tensor:
    """Return the result with the heads of the query as one axis again."""
    return result.flatten(-4, -3) if enable_gqa else result


def _align_grouped(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> AttentionOperands | None:
    if not query.dim() == key.dim() == value.dim() or query.dim() < 3:
        return None
    heads = key.shape[-3]
    if not heads or heads != value.shape[-3] or query.shape[-3] % heads:
        return None
    groups = (heads, query.shape[-3] // heads)
    masked = None if mask is None else _with_leading_axes(mask, query.dim())
    if masked is not None:
        masked = _split_heads(masked, groups)
        if masked is None:
            return None
    return _checked([_split_axis(query, groups), key.unsqueeze(-3), value.unsqueeze(-3), masked])


def _split_heads(mask: torch.Tensor, groups: tuple[int, int]) -> torch.Tensor | None:
    if mask.shape[-3] == 1:
        return _split_axis(mask, (1, 1))
    return _split_axis(mask, groups) if mask.shape[-3] == math.prod(groups) else None


def _split_axis(tensor: torch.Tensor, groups: tuple[int, int]) -> torch.Tensor:
    split: torch.Tensor = tensor.unflatten(-3, groups)  # type: ignore[no-untyped-call]
    return split


def _with_leading_axes(tensor: torch.Tensor, rank: int) -> torch.Tensor:
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


Order = tuple[int, ...]
"""Axes from the slowest to the fastest."""
Orders = tuple[Order | None, Order | None, Order | None, Order | None]
"""Of the gradients of query, key, value and mask; None: by rows, or not wanted."""

BY_ROWS: Orders = (None, None, None, None)


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
    """Seed of the dropout mask: forward and backward pass drop the same probabilities."""
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


class _OperandProbe(NamedTuple):
    """Description of a tiny operand in the layout of a real one: axes have at most two elements.

    For the memory order of a gradient only the order of strides counts, and which axes have size 1.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    wanted: bool


def gradient_orders(
    operands: tuple[torch.Tensor | None, ...], rank: int, *, is_causal: bool, enable_gqa: bool
) -> Orders:
    """Return the order of each gradient's axes for operands that are aligned to ``rank`` axes.

    Parameters
    ----------
    operands
        Query, key, value and mask, as ``scaled_dot_product_attention`` was given them.
    rank
        Number of axes of the aligned operands.
    is_causal, enable_gqa
        As it was given them.
    """
    if not torch.is_grad_enabled() or not any(each is not None and each.requires_grad for each in operands):
        return BY_ROWS
    probes = tuple(_probe_of(each, _probe_shape(each, operands, enable_gqa)) for each in operands)
    orders = [
        _aligned_order(each, rank, enable_gqa) for each in _probed_orders(probes, is_causal, enable_gqa)
    ]
    query, key, value, mask = orders
    return query, key, value, mask


def empty_in_order(shape: tuple[int, ...], order: Order | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape of a tensor that lies by rows, and how to permute it to have ``order``.

    >>> empty_in_order((2, 3, 4), (0, 2, 1))
    ((2, 4, 3), (0, 2, 1))
    """
    order = tuple(range(len(shape))) if order is None else order
    back = sorted(range(len(order)), key=order.__getitem__)
    return tuple(shape[axis] for axis in order), tuple(back)


def _probe_shape(
    tensor: torch.Tensor | None, operands: tuple[torch.Tensor | None, ...], enable_gqa: bool
) -> tuple[int, ...]:
    if tensor is None:
        return ()
    sizes = [min(size, 2) for size in tensor.shape]
    query, key = operands[:2]
    if enable_gqa and query is not None and key is not None and len(sizes) > 2 and sizes[-3] > 1:
        shared = min(2, query.shape[-3] // key.shape[-3])
        sizes[-3] = min(2, key.shape[-3]) * (shared if tensor.shape[-3] == query.shape[-3] else 1)
    return tuple(sizes)


def _probe_of(tensor: torch.Tensor | None, shape: tuple[int, ...]) -> _OperandProbe | None:
    if tensor is None:
        return None
    strides, step = [0] * len(shape), 1
    for axis in sorted(range(len(shape)), key=lambda axis: (tensor.stride(axis), -axis)):
        if tensor.stride(axis) or shape[axis] == 1:
            strides[axis], step = step, step * shape[axis]
    return _OperandProbe(shape, tuple(strides), tensor.dtype, tensor.requires_grad)


@lru_cache(maxsize=256)
def _probed_orders(
    probes: tuple[_OperandProbe | None, ...], is_causal: bool, enable_gqa: bool
) -> list[Order | None]:
    """Return the axis order of each gradient, found by running torch's attention on the tiny operands."""
    with passing():
        tensors = [None if each is None else _ones_like_probe(each) for each in probes]
        wanted = [each for each in tensors if each is not None and each.requires_grad]
        attention: Any = torch._scaled_dot_product_attention_math
        out = attention(*tensors, 0.0, is_causal, enable_gqa=enable_gqa)[0]
        # A gradient of ones that lies as a result does; given as such, torch would load SymPy to look at it.
        found = iter(torch.autograd.grad((out * torch.ones_like(out)).sum(), wanted))
        return [None if each is None or not each.requires_grad else _order(next(found)) for each in tensors]


def _ones_like_probe(probe: _OperandProbe) -> torch.Tensor:
    tensor = torch.empty_strided(probe.shape, probe.strides, dtype=probe.dtype, device="cpu").fill_(1)
    return tensor.requires_grad_(probe.wanted)


def _order(gradient: torch.Tensor) -> Order:
    # An axis of one element has the stride of the axis that it follows in memory.
    axes = range(gradient.dim())
    return tuple(sorted(axes, key=lambda axis: (-gradient.stride()[axis], gradient.shape[axis] == 1, axis)))


def _aligned_order(order: Order | None, rank: int, enable_gqa: bool) -> Order | None:
    """Return the order of an operand with axes of size one put first, and its heads split into two axes."""
    if order is None:
        return None
    missing = rank - len(order) - enable_gqa
    shifted = [*range(missing), *(axis + missing for axis in order)]
    if not enable_gqa:
        return tuple(shifted)
    heads = rank - 4
    split = [(axis, axis + 1) if axis == heads else (axis + (axis > heads),) for axis in shifted]
    return tuple(axis for pair in split for axis in pair)
