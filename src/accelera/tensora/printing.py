"""Text of tensors: their values, and what the values do not tell."""

from __future__ import annotations

from typing import Any

from accelera.tensora import dtypes
from accelera.tensora.core import native

_PLAIN = {dtypes.float32, dtypes.bool}
MOST_ELEMENTS = 1000
"""Tensors with more elements are summarised: the first and last three of each axis are written."""


def _values(x: Any) -> str:
    """Values in nested brackets, aligned."""
    import numpy as np

    near = x.detach().cpu()
    wide = native.cast(near, dtypes.float32) if x.dtype in (dtypes.float16, dtypes.bfloat16) else near
    return str(
        np.array2string(
            np.asarray(wide),
            separator=", ",
            prefix="tensor(",
            precision=4,
            threshold=MOST_ELEMENTS,
            suffix=")",
        )
    )


def _origin(x: Any) -> str | None:
    """Part of a tensor in a graph: a leaf, or the operation that made it."""
    if not x.requires_grad:
        return None
    return "requires_grad=True" if x.is_leaf else f"grad_fn={native.grad_fn(x)[0]}"


def represent(x: Any) -> str:
    """Values of a tensor, and what they do not tell: type, shape if summarised, device, gradient's origin.

    For example ``tensor([1., 2.], dtype=float64, requires_grad=True)``.
    """
    is_short = x.size > MOST_ELEMENTS or x.size == 0
    notes = [
        None if x.dtype in _PLAIN else f"dtype={x.dtype.name}",
        f"shape={tuple(x.shape)}" if is_short else None,
        None if x.device == "cpu" else f"device={x.device!r}",
        _origin(x),
    ]
    return f"tensor({', '.join([_values(x), *(each for each in notes if each)])})"
