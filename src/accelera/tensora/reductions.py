"""Sums, extremes and statistics over axes, and running sums and products along one."""

from __future__ import annotations

import builtins
from typing import Any

from accelera.tensora import dtypes
from accelera.tensora.core import Tensor, native
from accelera.tensora.manipulation import on_axis

Axes = int | tuple[int, ...] | None


def _accumulated(x: Any, dtype: Any, name: str) -> Any:
    """`x` in the type that a sum or product is asked for in."""
    if dtype is None:
        return x
    wanted = dtypes.as_dtype(dtype)
    if x.dtype in dtypes.KINDS["complex floating"] and wanted not in dtypes.KINDS["complex floating"]:
        raise TypeError(f"{name}: complex elements in {wanted}; take real() before")
    return native.cast(x, wanted)


def sum(x: Tensor, /, *, axis: Axes = None, dtype: Any = None, keepdims: Any = False) -> Tensor:
    """Sum over axes.

    Parameters
    ----------
    x
        Tensor of any type.
    axis
        One axis or several; None: all.
    dtype
        Type of the result. By default that of `x`, but int64 for bool and integers, uint64 for unsigned ones.
    keepdims
        Keep the axes, with extent 1.

    """
    found = native.sum(_accumulated(x, dtype, "sum"), axis, keepdims)
    return found if dtype is None else native.cast(found, dtypes.as_dtype(dtype))


def prod(x: Tensor, /, *, axis: Axes = None, dtype: Any = None, keepdims: Any = False) -> Tensor:
    """Product over axes; the arguments are those of `sum`."""
    found = native.prod(_accumulated(x, dtype, "prod"), axis, keepdims)
    return found if dtype is None else native.cast(found, dtypes.as_dtype(dtype))


def max(x: Tensor, /, *, axis: Axes = None, keepdims: Any = False) -> Tensor:
    """Largest element over axes; NaN where one is NaN.

    Raises
    ------
    ValueError
        If an axis is empty.

    """
    return native.max(x, axis, keepdims)


def min(x: Tensor, /, *, axis: Axes = None, keepdims: Any = False) -> Tensor:
    """Smallest element over axes; NaN where one is NaN.

    Raises
    ------
    ValueError
        If an axis is empty.

    """
    return native.min(x, axis, keepdims)


def any(x: Tensor, /, *, axis: Axes = None, keepdims: Any = False) -> Tensor:
    """Whether one element over axes is other than zero."""
    return native.any(x, axis, keepdims)


def all(x: Tensor, /, *, axis: Axes = None, keepdims: Any = False) -> Tensor:
    """Whether every element over axes is other than zero."""
    return native.all(x, axis, keepdims)


def count_nonzero(x: Tensor, /, *, axis: Axes = None, keepdims: Any = False) -> Tensor:
    """Number of elements other than zero over axes, as int64."""
    return native.sum(native.not_equal(x, 0), axis, keepdims)


# --- statistics -------------------------------------------------------------------------------------------


def _count(x: Any, axis: Axes) -> int:
    """Elements that go into one of the result."""
    if axis is None:
        return int(x.size)
    count = 1
    for each in axis if isinstance(axis, tuple) else (axis,):
        count *= x.shape[each]
    return count


def _wide(x: Any, name: str) -> Any:
    """`x` as floating-point numbers whose sums do not overflow."""
    if x.dtype in (dtypes.float16, dtypes.bfloat16):
        return native.cast(x, dtypes.float32)
    if x.dtype == dtypes.bool:
        raise TypeError(f"{name}: not defined for bool; convert with .to(float32)")
    return x if x.dtype in dtypes.INEXACT else native.cast(x, dtypes.default_dtype())


def _narrow(found: Any, x: Any) -> Any:
    return native.cast(found, x.dtype) if x.dtype in (dtypes.float16, dtypes.bfloat16) else found


def mean(x: Tensor, /, *, axis: Axes = None, keepdims: Any = False) -> Tensor:
    """Arithmetic mean over axes; of integers in the default floating-point type. NaN of no elements."""
    wide = _wide(x, "mean")
    return _narrow(native.divide(native.sum(wide, axis, keepdims), float(_count(x, axis))), x)


def var(x: Tensor, /, *, axis: Axes = None, correction: float = 0.0, keepdims: Any = False) -> Tensor:
    """Variance over axes: mean squared distance from the mean.

    Parameters
    ----------
    x
        Tensor of a floating-point, complex or integer type.
    axis
        One axis or several; None: all.
    correction
        Subtracted from the number of elements that the sum is divided by; 1 gives the unbiased estimate.
    keepdims
        Keep the axes, with extent 1.

    """
    wide = _wide(x, "var")
    distance = native.subtract(wide, mean(wide, axis=axis, keepdims=True))
    if x.dtype in dtypes.KINDS["complex floating"]:
        distance = native.abs(distance)
    n = builtins.max(_count(x, axis) - correction, 0)
    return _narrow(native.divide(native.sum(native.square(distance), axis, keepdims), float(n)), x)


def std(x: Tensor, /, *, axis: Axes = None, correction: float = 0.0, keepdims: Any = False) -> Tensor:
    """Standard deviation over axes: square root of `var`, with the same arguments."""
    return native.sqrt(var(x, axis=axis, correction=correction, keepdims=keepdims))


def logsumexp(x: Tensor, /, *, axis: Axes = None, keepdims: Any = False) -> Tensor:
    """Logarithm of the sum of exponentials over axes, without overflow."""
    wide = x if x.dtype in dtypes.INEXACT else native.cast(x, dtypes.default_dtype())
    most = native.max(wide.detach(), axis, True)
    most = native.where(native.isfinite(most), most, 0)
    total = native.log(native.sum(native.exp(native.subtract(wide, most)), axis, keepdims))
    return native.add(total, most if keepdims else native.reshape(most, total.shape))


# --- along one axis ---------------------------------------------------------------------------------------


def _cumulative(name: str, x: Any, axis: int | None, dtype: Any, initial: int | None) -> Any:
    if axis is None:
        if x.ndim > 1:
            raise ValueError(f"{name}: a tensor with {x.ndim} dimensions; give the axis")
        axis = 0
        x = native.reshape(x, (1,)) if x.ndim == 0 else x
    found = getattr(native, {"cumulative_sum": "cumsum", "cumulative_prod": "cumprod"}[name])(
        _accumulated(x, dtype, name), axis
    )
    if dtype is not None:
        found = native.cast(found, dtypes.as_dtype(dtype))
    if initial is None:
        return found
    shape = list(found.shape)
    shape[axis] = 1
    return native.concat([native.full(tuple(shape), initial, found.dtype), found], axis)


def cumulative_sum(
    x: Tensor, /, *, axis: int | None = None, dtype: Any = None, include_initial: Any = False
) -> Tensor:
    """Sum of each element and all before it along an axis.

    Parameters
    ----------
    x
        Tensor of a numeric type.
    axis
        The axis; may be left out for a vector.
    dtype
        Type of the result; by default as for `sum`.
    include_initial
        Begin with the sum of no elements, 0.

    """
    return _cumulative("cumulative_sum", x, axis, dtype, 0 if include_initial else None)


def cumulative_prod(
    x: Tensor, /, *, axis: int | None = None, dtype: Any = None, include_initial: Any = False
) -> Tensor:
    """Product of each element and all before it along an axis, with the arguments of `cumulative_sum`."""
    return _cumulative("cumulative_prod", x, axis, dtype, 1 if include_initial else None)


def diff(
    x: Tensor, /, *, axis: int = -1, n: int = 1, prepend: Tensor | None = None, append: Tensor | None = None
) -> Tensor:
    """Differences of neighbours along an axis, taken `n` times.

    Parameters
    ----------
    x
        Tensor of a numeric type.
    axis
        The axis.
    n
        How often.
    prepend, append
        Tensors that are put before and behind along the axis.

    """
    parts = [each for each in (prepend, x, append) if each is not None]
    if len(parts) > 1:
        x = native.concat(parts, axis)
    at = axis % x.ndim
    for _ in range(n):
        x = native.subtract(x[on_axis(at, slice(1, None))], x[on_axis(at, slice(None, -1))])
    return x
