"""Roots of sums of powers that neither overflow nor vanish where the result can be represented."""

from __future__ import annotations

import math
from typing import Any

from accelera.tensora import dtypes
from accelera.tensora.core import native

Axes = int | tuple[int, ...] | None

# Sums of powers up to these exponents of two, and down to their reciprocals, are computed without scaling.
_SINGLE_EXPONENT, _DOUBLE_EXPONENT = 80, 800


def as_single(x: Any) -> Any:
    """Return half-precision numbers as float32, and others unchanged."""
    return native.cast(x, dtypes.float32) if x.dtype in (dtypes.float16, dtypes.bfloat16) else x


def squares(x: Any) -> Any:
    """Return the squared moduli."""
    if x.dtype in dtypes.KINDS["complex floating"]:
        return native.add(native.square(native.real(x)), native.square(native.imag(x)))
    return native.square(x)


def _root(total: Any) -> Any:
    """Return the square root; its gradient at 0 is 0."""
    if not total.requires_grad:
        return native.sqrt(total)
    zero = native.equal(total, 0)
    return native.where(zero, total, native.sqrt(native.where(zero, 1.0, total)))


def power_scale(size: Any, p: float, axis: Axes) -> Any:
    """Return the modulus with the largest power if powers could overflow or vanish, and otherwise 1.

    The axes are kept with extent 1. No gradient flows through the scale.
    """
    if size.size == 0:
        return native.full((), 1.0, size.dtype, size.device)
    extreme = (native.max if p > 0 else native.min)(size.detach(), axis, True)
    exponent = _DOUBLE_EXPONENT if size.dtype == dtypes.float64 else _SINGLE_EXPONENT
    # The gradient has powers of order p - 1.
    limit = 2.0 ** min(exponent / max(abs(p), abs(p - 1)), 1000.0)
    large = native.logical_and(native.greater(extreme, limit), native.less(extreme, math.inf))
    small = native.logical_and(native.greater(extreme, 0), native.less(extreme, 1 / limit))
    return native.where(native.logical_or(large, small), extreme, 1.0)


def root_of_squares(x: Any, axis: Axes, keepdims: bool = False, divisor: float = 1.0) -> Any:
    """Return the root of the sum of squared moduli over `divisor`; its gradient at 0 is 0."""
    scale = power_scale(native.abs(x.detach()), 2, axis)
    total = native.sum(squares(native.divide(x, scale)), axis, keepdims)
    return native.multiply(_root(native.divide(total, divisor)), _like_result(scale, total))


def _like_result(scale: Any, total: Any) -> Any:
    """Return the scale in the shape of the reduced tensor."""
    return native.reshape(scale, tuple(total.shape)) if scale.size == total.size else scale


def power_norm(x: Any, p: float, axis: Axes, keepdims: bool = False) -> Any:
    """Root of order `p` of the sum of powers of moduli; its gradient is zero where the element is."""
    size = native.abs(x)
    if p == 2:
        return root_of_squares(size, axis, keepdims)
    scale = power_scale(size, p, axis)
    size = native.divide(size, scale)
    apart = native.not_equal(size, 0)
    # Zeros stand for their own powers, so that their gradient is NaN if that of the root is.
    powers = native.where(apart, native.pow(native.where(apart, size, 1.0), p), size)
    total = native.sum(powers, axis, keepdims)
    zero = native.equal(total, 0) if p > 0 else native.logical_not(native.all(apart, axis, keepdims))
    zero = native.logical_and(zero, native.equal(total, total))
    root = native.where(zero, 0.0, native.pow(native.where(zero, 1.0, total), 1 / p))
    return native.multiply(root, _like_result(scale, root))
