"""Memory order of attention's gradients: that of PyTorch's own composition of products and a softmax.

It depends on ranks, on sizes that are one and on the operands' strides in ways that no short rule covers, so
torch is asked: it differentiates attention of two rows and two keys, strides ordered as the operands' are.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch

from accelera.interceptor.hooks import passing

Order = tuple[int, ...]
"""Axes from the slowest to the fastest."""
Orders = tuple[Order | None, Order | None, Order | None, Order | None]
"""Of the gradients of query, key, value and mask; None: by rows, or not wanted."""

BY_ROWS: Orders = (None, None, None, None)


class _OperandCorner(NamedTuple):
    """A few elements of an operand: sizes of at most two where only one or many counts."""

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
    corners = tuple(_corner(each, _shape(each, operands, enable_gqa)) for each in operands)
    orders = [_aligned(each, rank, enable_gqa) for each in _asked(corners, is_causal, enable_gqa)]
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


def _shape(
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


def _corner(tensor: torch.Tensor | None, shape: tuple[int, ...]) -> _OperandCorner | None:
    if tensor is None:
        return None
    strides, step = [0] * len(shape), 1
    for axis in sorted(range(len(shape)), key=lambda axis: (tensor.stride(axis), -axis)):
        if tensor.stride(axis) or shape[axis] == 1:
            strides[axis], step = step, step * shape[axis]
    return _OperandCorner(shape, tuple(strides), tensor.dtype, tensor.requires_grad)


@lru_cache(maxsize=256)
def _asked(
    corners: tuple[_OperandCorner | None, ...], is_causal: bool, enable_gqa: bool
) -> list[Order | None]:
    """Return the order of the axes of each gradient that torch returns for such operands."""
    with passing():
        tensors = [None if each is None else _ones(each) for each in corners]
        wanted = [each for each in tensors if each is not None and each.requires_grad]
        attention: Any = torch._scaled_dot_product_attention_math
        out = attention(*tensors, 0.0, is_causal, enable_gqa=enable_gqa)[0]
        # A gradient of ones that lies as a result does; given as such, torch would load SymPy to look at it.
        found = iter(torch.autograd.grad((out * torch.ones_like(out)).sum(), wanted))
        return [None if each is None or not each.requires_grad else _order(next(found)) for each in tensors]


def _ones(corner: _OperandCorner) -> torch.Tensor:
    tensor = torch.empty_strided(corner.shape, corner.strides, dtype=corner.dtype, device="cpu").fill_(1)
    return tensor.requires_grad_(corner.wanted)


def _order(gradient: torch.Tensor) -> Order:
    # An axis of one element has the stride of the axis that it follows in memory.
    axes = range(gradient.dim())
    return tuple(sorted(axes, key=lambda axis: (-gradient.stride()[axis], gradient.shape[axis] == 1, axis)))


def _aligned(order: Order | None, rank: int, enable_gqa: bool) -> Order | None:
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
