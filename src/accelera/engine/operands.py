"""From what a caller hands in to stores of one rank and their description for the planner."""

from __future__ import annotations

from typing import Any

import numpy as np

from accelera.devices import Device, get_device
from accelera.engine.promotion import HALVES, held_dtype
from accelera.errors import DTypeError, ShapeError
from accelera.plan import Operand
from accelera.stores import Store

_MATRIX_KINDS = "fciu"


def factor_dtype(dtype: np.dtype[Any], device: Device) -> np.dtype[Any]:
    """Return the element type in which ``device`` holds factors: a half type where it multiplies them."""
    return dtype if dtype in HALVES and device.multiplies(dtype) else held_dtype(dtype)


def multiplier(device: Device, dtype: np.dtype[Any]) -> Device:
    """Return ``device`` when it multiplies blocks of elements of ``dtype``, else the CPU."""
    return device if device.multiplies(factor_dtype(dtype, device)) else get_device("cpu")


def describe(name: str, store: Store, device: Device, held: np.dtype[Any]) -> Operand:
    """Return how the planner sees ``store`` when ``device`` computes."""
    layout = store.layout
    resident = store.resident() if device.host_memory and store.dtype == held else None
    return Operand(
        name=name,
        shape=store.shape,
        dtype=store.dtype,
        held_dtype=held,
        tier=store.tier,
        order=layout.order,
        chunk=layout.chunk,
        dense=layout.dense,
        scratch_bytes=store.scratch_bytes,
        in_place=resident is not None and device.can_take(resident),
    )


def check_matmul_dtypes(a: Store, b: Store) -> np.dtype[Any]:
    """Return the common element type of a product.

    Raises DTypeError when they differ or cannot be multiplied.
    """
    if a.dtype != b.dtype:
        raise DTypeError(
            f"[matmul] A is {a.dtype} and B is {b.dtype}: a product takes one element type; convert one of "
            f"them first (engine.copy(x, out=..., dtype=...), or x.astype(...))"
        )
    if a.dtype not in HALVES and a.dtype.kind not in _MATRIX_KINDS:
        raise DTypeError(f"[matmul] {a.dtype} cannot be multiplied; use a float, complex or integer type")
    return a.dtype


def matmul_shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of ``a @ b`` by the rules of ``torch.matmul``.

    Raises ShapeError when they do not fit.

    >>> matmul_shape((5, 2, 3), (3, 4)), matmul_shape((3,), (3,)), matmul_shape((2, 3), (3,))
    ((5, 2, 4), (), (2,))
    """
    if not a or not b:
        raise ShapeError(f"[matmul] shapes {a} and {b}: both need at least one axis; multiply scalars with *")
    inner_b = b[-2] if len(b) > 1 else b[0]
    if a[-1] != inner_b:
        raise ShapeError(
            f"[matmul] shapes {a} and {b} do not fit: the last axis of A has {a[-1]}, the "
            f"{'second to last' if len(b) > 1 else 'only'} axis of B has {inner_b}; they must be equal"
        )
    try:
        batch = np.broadcast_shapes(a[:-2], b[:-2])
    except ValueError:
        raise ShapeError(
            f"[matmul] batch axes {a[:-2]} and {b[:-2]} of shapes {a} and {b} do not broadcast; "
            f"each pair must be equal or 1"
        ) from None
    return (*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


def as_matrices(a: Store, b: Store) -> tuple[Store, Store]:
    """Return views of A and B with the same number of axes, at least two."""
    if a.ndim == 1:
        a = a[None, :]
    if b.ndim == 1:
        b = b[:, None]
    rank = max(a.ndim, b.ndim)
    return _with_rank(a, rank), _with_rank(b, rank)


def result_view(store: Store, a_ndim: int, b_ndim: int) -> Store:
    """Return a view of the result with both matrix axes, whatever axes the operands lacked."""
    if b_ndim == 1:
        store = store[..., None]
    if a_ndim == 1:
        store = store[..., None, :]
    return store


def _with_rank(store: Store, rank: int) -> Store:
    missing = rank - store.ndim
    return store[(None,) * missing + (slice(None),) * store.ndim] if missing else store
