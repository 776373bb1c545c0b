"""The product of stacks of matrices with broadcast batch axes, as a function autograd knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from accelera.interceptor.broadcasting.contraction import SCRATCH_BYTES, contract
from accelera.interceptor.falling_back import is_accelerator, with_less_room
from accelera.interceptor.mechanism import passing

Empty = Callable[[tuple[int, ...], torch.dtype, torch.device], torch.Tensor]
"""Where results come from: shape, dtype and device to a contiguous tensor of any contents."""

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
    x, y = _of_rank(x, rank), _of_rank(y, rank)
    batch = tuple(max(sizes) for sizes in zip(x.shape[:-2], y.shape[:-2], strict=True))
    result: torch.Tensor = _SummedProduct.apply(x, y, batch, empty)  # type: ignore[no-untyped-call]
    return result


def _of_rank(tensor: torch.Tensor, rank: int) -> torch.Tensor:
    return tensor.reshape((1,) * (rank - tensor.dim()) + tensor.shape)


def _contracted(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Write ``x @ y`` into ``out`` and return it, with less room or on the CPU when memory runs out."""
    return with_less_room(
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
            return _contracted(x.detach(), y.detach(), out)

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
