"""Checks of the operands of a product, which every device makes before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from accelera.errors import DTypeError, ShapeError

Shape = Sequence[int]

FLOATING = frozenset(map(np.dtype, ("float32", "float64", "complex64", "complex128")))
HALVES = frozenset((np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)))
INTEGERS = frozenset(np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64))


def check_gemm(a: Shape, b: Shape, c: Shape) -> None:
    """Raise ShapeError unless ``(…, m, k) @ (…, k, n) -> (…, m, n)`` holds with batch axes broadcast."""
    if len(a) < 2 or len(b) < 2 or len(c) < 2:
        raise ShapeError(f"[gemm] {_shapes(a, b, c)}: each needs two axes; give a vector an axis of 1")
    if a[-1] != b[-2] or c[-2] != a[-2] or c[-1] != b[-1]:
        raise ShapeError(f"[gemm] {_shapes(a, b, c)}: (…, m, k) @ (…, k, n) -> (…, m, n) does not hold")
    if len(a) == len(b) == len(c) == 2:
        return
    try:
        fits = np.broadcast_shapes(tuple(a[:-2]), tuple(b[:-2])) == tuple(c[:-2])
    except ValueError:
        fits = False
    if not fits:
        raise ShapeError(f"[gemm] {_shapes(a, b, c)}: the batch axes of a and b do not broadcast to c's")


def check_gram(a: Shape, c: Shape) -> None:
    """Raise ShapeError unless ``(…, k, n) -> (…, n, n)`` holds with the same batch axes."""
    if len(a) < 2 or tuple(c) != (*a[:-2], a[-1], a[-1]):
        raise ShapeError(f"[gram] {tuple(a)} -> {tuple(c)}: (…, k, n) -> (…, n, n) does not hold")


def check_symmetrize(c: Shape) -> None:
    """Raise ShapeError unless the last two axes are equal."""
    if len(c) < 2 or c[-1] != c[-2]:
        raise ShapeError(f"[symmetrize] {tuple(c)}: the last two axes must be equal")


def check_upload(host: Shape, target: Shape, op: str) -> None:
    """Raise ShapeError unless both shapes are equal."""
    if tuple(host) != tuple(target):
        raise ShapeError(f"[{op}] {tuple(host)} into {tuple(target)}: the shapes must be equal")


def check_view(shape: Shape, dtype: np.dtype[Any], order: Shape, buffer_bytes: int) -> None:
    """Raise ShapeError unless a dense array fits the buffer and ``order`` names each axis once."""
    if sorted(order) != list(range(len(shape))):
        raise ShapeError(f"[view] order {tuple(order)} must name each axis of {tuple(shape)} once")
    needed = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if needed > buffer_bytes:
        raise ShapeError(f"[view] {tuple(shape)} {dtype} needs {needed} bytes; the buffer has {buffer_bytes}")


def check_dtypes(op: str, *dtypes: np.dtype[Any]) -> None:
    """Raise DTypeError unless all are one dtype that devices multiply."""
    first = dtypes[0]
    if all(each == first for each in dtypes) and (first in FLOATING or first in INTEGERS):
        return
    names = ", ".join(map(str, dtypes))
    raise DTypeError(
        f"[{op}] {names}: all must be one of float32, float64, complex64, complex128 or an integer type, in "
        f"native byte order; hold half types in float32, or the result where the device multiplies them"
    )


def check_halves(op: str, a: np.dtype[Any], b: np.dtype[Any], c: np.dtype[Any]) -> None:
    """Raise DTypeError unless factors of one half type are summed in float32."""
    if a != b or c != np.float32:
        raise DTypeError(
            f"[{op}] {a}, {b}, {c}: factors of half types must be of one type, and the result float32"
        )


def check_cast(op: str, source: np.dtype[Any], target: np.dtype[Any]) -> None:
    """Raise DTypeError when converting would lose more than precision (a fraction, an imaginary part)."""
    if _rank(source) > _rank(target):
        raise DTypeError(f"[{op}] {source} into {target} would lose more than precision; convert it first")


def _rank(dtype: np.dtype[Any]) -> int:
    """Return 0 for truth values, 1 for integers, 2 for reals (ml_dtypes' too), 3 for complex numbers."""
    return {"b": 0, "i": 1, "u": 1, "c": 3}.get(dtype.kind, 2)


def _shapes(a: Shape, b: Shape, c: Shape) -> str:
    return f"{tuple(a)} @ {tuple(b)} -> {tuple(c)}"
