"""Sums of squares and of powers, and their roots."""

from __future__ import annotations

from accelera.tensora import dtypes
from accelera.tensora.core import DType, Tensor, native

Axes = int | tuple[int, ...] | None


def as_single(x: Tensor) -> Tensor:
    """Return half-precision numbers as float32, and others unchanged."""
    return native.cast(x, dtypes.float32) if x.dtype in (dtypes.float16, dtypes.bfloat16) else x


def squares(x: Tensor) -> Tensor:
    """Return the squared moduli."""
    if x.dtype in dtypes.KINDS["complex floating"]:
        return native.add(native.square(native.real(x)), native.square(native.imag(x)))
    return native.square(x)


def real_type(dtype: DType) -> DType:
    """Type of the modulus of an element."""
    return {"complex64": dtypes.float32, "complex128": dtypes.float64}.get(dtype.name, dtype)


def root(total: Tensor) -> Tensor:
    """Return the square root; its gradient at 0 is 0."""
    if not total.requires_grad:
        return native.sqrt(total)
    zero = native.equal(total, 0)
    return native.where(zero, total, native.sqrt(native.where(zero, 1.0, total)))


def root_of_squares(x: Tensor, axis: Axes, keepdims: bool = False) -> Tensor:
    """Return the root of the sum of squared moduli; its gradient at 0 is 0."""
    return root(native.sum(squares(x), axis, keepdims))


def power_norm(x: Tensor, p: float, axis: Axes, keepdims: bool = False) -> Tensor:
    """Root of order `p` of the sum of powers of moduli; its gradient is zero where the element is."""
    size = native.abs(x)
    if p == 2:
        return root_of_squares(size, axis, keepdims)
    apart = native.not_equal(size, 0)
    # Zeros stand for their own powers, so that their gradient is NaN if that of the root is.
    powers = native.where(apart, native.pow(native.where(apart, size, 1.0), p), size)
    total = native.sum(powers, axis, keepdims)
    zero = native.equal(total, 0) if p > 0 else native.logical_not(native.all(apart, axis, keepdims))
    zero = native.logical_and(zero, native.equal(total, total))
    return native.where(zero, 0.0, native.pow(native.where(zero, 1.0, total), 1 / p))
