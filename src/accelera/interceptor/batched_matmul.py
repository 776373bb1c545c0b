"""``matmul`` over broadcast batch axes without a copy of either operand, known to autograd."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch

from accelera.interceptor.config import InterceptionConfig, Route, stays_in_memory
from accelera.interceptor.contraction import SCRATCH_BYTES, contract
from accelera.interceptor.hooks import passing
from accelera.interceptor.router import InterceptedCall, handler_of, is_accelerator, with_less_scratch
from accelera.interceptor.spill import Empty, empty
from accelera.interceptor.tiling import broadcast, nbytes

_LEAST_SCRATCH_BYTES = 1 << 20


def plain_empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a tensor of any contents in ordinary memory."""
    return torch.empty(shape, dtype=dtype, device=device)


def broadcast_matmul(x: torch.Tensor, y: torch.Tensor, *, empty: Empty = plain_empty) -> torch.Tensor:
    """Return ``torch.matmul(x, y)`` without expanding an operand; differentiable any number of times.

    Parameters
    ----------
    x, y
        ``(*batch, m, k)`` and ``(*batch, k, n)`` of one dtype, with at least two axes each; the batch axes
        are broadcast. Nothing is empty.
    empty
        Where the result and the gradients come from.
    """
    rank = max(x.dim(), y.dim())
    x, y = _with_leading_axes(x, rank), _with_leading_axes(y, rank)
    batch = tuple(max(sizes) for sizes in zip(x.shape[:-2], y.shape[:-2], strict=True))
    result: torch.Tensor = _SummedProduct.apply(x, y, batch, empty)  # type: ignore[no-untyped-call]
    return result


def _with_leading_axes(tensor: torch.Tensor, rank: int) -> torch.Tensor:
    return tensor.reshape((1,) * (rank - tensor.dim()) + tensor.shape)


def _contract_with_fallback(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Write ``x @ y`` into ``out`` and return it, with less scratch or on the CPU when memory runs out."""
    return with_less_scratch(
        "matmul",
        lambda scratch_bytes: contract(x, y, out, scratch_bytes=scratch_bytes),
        SCRATCH_BYTES,
        _LEAST_SCRATCH_BYTES,
        (lambda: out.copy_(contract(x.cpu(), y.cpu(), out.cpu()))) if is_accelerator(out.device) else None,
    )


class _SummedProduct(torch.autograd.Function):
    """``x @ y`` summed over the batch axes that the result lacks.

    An axis is missing from at most one of the three tensors, so both gradients are of this form again.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, y: torch.Tensor, batch: tuple[int, ...], empty: Empty
    ) -> torch.Tensor:
        ctx.save_for_backward(x, y)
        ctx.save_for_forward(x, y)
        ctx.batch, ctx.empty = batch, empty
        with passing():
            out = empty((*batch, x.shape[-2], y.shape[-1]), x.dtype, x.device)
            return _contract_with_fallback(x.detach(), y.detach(), out)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None]:
        x, y = ctx.saved_tensors
        grad_x = grad_y = None
        if ctx.needs_input_grad[0]:
            grad_x = _SummedProduct.apply(grad, y.mH, tuple(x.shape[:-2]), ctx.empty)  # type: ignore[no-untyped-call]
        if ctx.needs_input_grad[1]:
            grad_y = _SummedProduct.apply(x.mH, grad, tuple(y.shape[:-2]), ctx.empty)  # type: ignore[no-untyped-call]
        return grad_x, grad_y, None, None

    @staticmethod
    def jvp(ctx: Any, x_tangent: Any, y_tangent: Any, *_: Any) -> Any:
        x, y = ctx.saved_tensors
        pairs = [(x_tangent, y), (x, y_tangent)]
        parts = [
            _SummedProduct.apply(left, right, ctx.batch, ctx.empty)  # type: ignore[no-untyped-call]
            for left, right in pairs
            if left is not None and right is not None
        ]
        return sum(parts[1:], start=parts[0])


_OP = "matmul"


class BatchedMatmulCall(InterceptedCall):
    """``matmul`` for which torch would copy an operand to repeat it along batch axes.

    The products that torch composes a direct call of are looked at, and counted, by themselves.
    """

    op = _OP
    counts_direct = False

    def __init__(self, x: torch.Tensor, y: torch.Tensor, result_bytes: int, copied_bytes: int) -> None:
        self._x, self._y = x, y
        self.device = x.device
        self.result_bytes, self.temporary_bytes = result_bytes, copied_bytes
        self.looked_bytes = result_bytes + x.nbytes + y.nbytes

    def bounded(self, config: InterceptionConfig, budget_bytes: int) -> tuple[torch.Tensor, Route]:
        """Compute the product with operands where they are."""
        result = broadcast_matmul(self._x, self._y, empty=_empty_result)
        return result, "chunked" if stays_in_memory(result.nbytes, self.device) else "spilled"


def _read(args: tuple[Any, ...], _: dict[str, Any]) -> BatchedMatmulCall | None:
    """Return the call; None when torch copies no operand or the call is not ours."""
    x, y = args
    if min(x.dim(), y.dim()) < 2 or max(x.dim(), y.dim()) < 3:
        return None
    if x.dtype != y.dtype or x.device != y.device or x.dtype == torch.bool or x.is_neg() or y.is_neg():
        return None
    if x.shape[-1] != y.shape[-2] or not x.numel() or not y.numel():
        return None
    try:
        shape = _result_shape(x, y)
    except ValueError:
        return None
    copied = _copied_bytes(x, shape[:-2]) + _copied_bytes(y, shape[:-2])
    return BatchedMatmulCall(x, y, nbytes(shape, x.dtype), copied) if copied else None


matmul = handler_of(_OP, _read)
"""Handler: torch's own composition, or operands in place when their copies would exceed the budget."""


def _empty_result(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return empty(_OP, shape, dtype, device)


def _result_shape(x: torch.Tensor, y: torch.Tensor) -> tuple[int, ...]:
    return (*broadcast((x.shape[:-2], y.shape[:-2])), x.shape[-2], y.shape[-1])


def _copied_bytes(tensor: torch.Tensor, batch: Sequence[int]) -> int:
    """Return the bytes of the copy of ``tensor`` that is one stack over ``batch``; 0 for a view."""
    missing = len(batch) - (tensor.dim() - 2)
    strides = [0] * missing
    for size, stride in zip(tensor.shape[:-2], tensor.stride()[:-2], strict=True):
        strides.append(stride if size > 1 else 0)
    steps = [(size, stride) for size, stride in zip(batch, strides, strict=True) if size > 1]
    is_view = all(outer[1] == inner[1] * inner[0] for outer, inner in itertools.pairwise(steps))
    return 0 if is_view else math.prod(batch) * math.prod(tensor.shape[-2:]) * tensor.element_size()
