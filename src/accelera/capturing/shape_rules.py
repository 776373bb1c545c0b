"""Shapes of results where torch's rule for tensors without contents refuses what its kernel computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from accelera.capturing.workspaces import rnn_workspace_bytes

ShapeRule = Callable[..., Any]
"""Takes an operator's arguments and returns its results as new tensors on the first argument's device."""

_ALIGNMENT_BYTES = 16
"""Rows of a grouped product begin at multiples of this."""


def shape_rule(func: Any) -> ShapeRule | None:
    """Return the rule that stands in for torch's own; None: torch's own is as wide as its kernel."""
    return _RULES.get(func)


class ShapeMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """torch's mode of tensors without contents, for all that torch's CPU kernels take."""

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return the results of one operator; called by torch."""
        rule = _RULES.get(func)
        if rule is None:
            return super().dispatch(func, types, args, kwargs or {})
        with self:
            return rule(*args, **(kwargs or {}))


def _grouped_product(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,  # noqa: ARG001 - no kernel takes one yet
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Return what ``torch._grouped_mm`` does: torch's rule takes bfloat16 only, its CPU kernel more.

    Raises RuntimeError for operands that are no such product, as the kernel does.
    """
    _check_grouped(a, b, offs)
    shape = _grouped_shape(a, b, offs)
    dtype = out_dtype or a.dtype
    step = _ALIGNMENT_BYTES // dtype.itemsize
    row = -(-shape[-1] // step) * step
    strides = (shape[-2] * row, row, 1)[-len(shape) :]
    return torch.empty_strided(shape, strides, dtype=dtype, device=a.device)


def _check_grouped(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None) -> None:
    known = (torch.bfloat16, torch.float16, torch.float32)
    if a.dtype not in known or a.dtype != b.dtype:
        raise RuntimeError(
            f"grouped products are of bfloat16, float16 or float32, not of {a.dtype} and {b.dtype}"
        )
    if a.dim() not in (2, 3) or b.dim() not in (2, 3):
        raise RuntimeError(f"grouped products are of 2 or 3 axes, not of {a.dim()} and {b.dim()}")
    if (offs is None) != (a.dim() == b.dim() == 3):
        raise RuntimeError("grouped products need offsets unless both operands are stacks of matrices")
    if max(a.dim(), b.dim()) == 3 and a.shape[-1] != b.shape[-2]:
        raise RuntimeError(
            f"a grouped product of {tuple(a.shape)} and {tuple(b.shape)}: the inner axes differ"
        )


def _grouped_shape(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None) -> tuple[int, ...]:
    if a.dim() == b.dim() == 3:
        return (a.shape[0], a.shape[1], b.shape[2])
    if a.dim() == b.dim() == 2:
        assert offs is not None, "two matrices are grouped by offsets"
        return (offs.shape[0], a.shape[0], b.shape[1])
    return (a.shape[-2], b.shape[-1])


def _lstm_layer(rows: torch.Tensor, *more: Any) -> tuple[torch.Tensor, ...]:
    """Return what ``torch.mkldnn_rnn_layer`` does; torch's rule leaves out what its backward pass needs."""
    hidden, cell, size = more[4], more[5], more[9]
    steps, count, width = rows.shape
    differentiable = torch.is_grad_enabled()
    kept = rnn_workspace_bytes(count, steps, width, size, rows.itemsize) if differentiable else 0
    return (
        rows.new_empty(steps, count, size),
        hidden.new_empty(hidden.shape),
        cell.new_empty(cell.shape),
        rows.new_empty(kept, dtype=torch.uint8),
    )


_RULES: dict[Any, ShapeRule] = {torch.ops.aten.mkldnn_rnn_layer.default: _lstm_layer}
if hasattr(torch.ops.aten, "_grouped_mm"):
    _RULES[torch.ops.aten._grouped_mm.default] = _grouped_product
