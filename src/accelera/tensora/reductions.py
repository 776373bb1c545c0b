"""Sums, extremes and statistics over axes, and running sums and products along one."""

from __future__ import annotations

import builtins
import math
from typing import Any, NamedTuple

from accelera.errors import ArgumentError, DTypeError, ShapeError
from accelera.tensora import dtypes
from accelera.tensora.amp import computes_in
from accelera.tensora.core import Tensor, native
from accelera.tensora.manipulation import on_axis
from accelera.tensora.norms import power_norm, real_type, root, squares
from accelera.tensora.sort_search import Selected
from accelera.tensora.typing import DTypeLike

Axes = int | tuple[int, ...] | None
_DOUBLE = {dtypes.float32: dtypes.float64, dtypes.complex64: dtypes.complex128}


def _cast_for_sum(x: Any, dtype: DTypeLike | None, name: str) -> Any:
    """Return `x` in the type requested for a sum or product; TypeError if complex elements would be lost."""
    if dtype is None:
        return x
    wanted = dtypes.as_dtype(dtype)
    if x.dtype in dtypes.KINDS["complex floating"] and wanted not in dtypes.KINDS["complex floating"]:
        raise DTypeError(f"[{name}] complex elements in {wanted}; take real() before")
    return native.cast(x, wanted)


def sum(x: Tensor, /, *, axis: Axes = None, dtype: DTypeLike | None = None, keepdims: bool = False) -> Tensor:
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
    found = native.sum(_cast_for_sum(x, dtype, "sum"), axis, keepdims)
    return found if dtype is None else native.cast(found, dtypes.as_dtype(dtype))


def prod(
    x: Tensor, /, *, axis: Axes = None, dtype: DTypeLike | None = None, keepdims: bool = False
) -> Tensor:
    """Product over axes; the arguments are those of `sum`."""
    found = native.prod(_cast_for_sum(x, dtype, "prod"), axis, keepdims)
    return found if dtype is None else native.cast(found, dtypes.as_dtype(dtype))


def max(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Largest element over axes; NaN where one is NaN.

    Raises
    ------
    ValueError
        If an axis is empty.

    """
    return native.max(x, axis, keepdims)


def min(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Smallest element over axes; NaN where one is NaN.

    Raises
    ------
    ValueError
        If an axis is empty.

    """
    return native.min(x, axis, keepdims)


def any(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Test whether any element over axes is nonzero."""
    return native.any(x, axis, keepdims)


def all(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Test whether all elements over axes are nonzero."""
    return native.all(x, axis, keepdims)


def count_nonzero(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Number of elements other than zero over axes, as int64."""
    return native.sum(native.not_equal(x, 0), axis, keepdims)


# --- statistics -------------------------------------------------------------------------------------------


def _count(x: Tensor, axis: Axes) -> int:
    """Return the number of elements that are reduced to one."""
    if axis is None or x.ndim == 0:
        return int(x.size)
    count = 1
    for each in axis if isinstance(axis, tuple) else (axis,):
        count *= x.shape[each]
    return count


def as_inexact(x: Tensor, name: str) -> Tensor:
    """`x` as floating-point numbers whose sums do not overflow."""
    if x.dtype in (dtypes.float16, dtypes.bfloat16):
        return native.cast(x, dtypes.float32)
    if x.dtype == dtypes.bool:
        raise DTypeError(f"[{name}] not defined for bool; convert with .to(float32)")
    return x if x.dtype in dtypes.INEXACT else native.cast(x, dtypes.default_dtype())


def _cast_back(found: Tensor, x: Tensor) -> Tensor:
    return native.cast(found, x.dtype) if x.dtype in (dtypes.float16, dtypes.bfloat16) else found


def mean(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Arithmetic mean over axes; of integers in the default floating-point type. NaN of no elements."""
    wide = as_inexact(x, "mean")
    return _cast_back(native.divide(native.sum(wide, axis, keepdims), float(_count(x, axis))), x)


def var(x: Tensor, /, *, axis: Axes = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
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
    wide = as_inexact(x, "var")
    divisor = float(builtins.max(_count(x, axis) - correction, 0))
    total = native.sum(squares(_distance_from_mean(wide, axis)), axis, keepdims)
    return _cast_back(native.divide(total, divisor), x)


def _distance_from_mean(x: Tensor, axis: Axes) -> Tensor:
    """Return `x` minus its mean over axes, exactly zero if all elements are equal."""
    if x.size == 0:
        return native.subtract(x, mean(x, axis=axis, keepdims=True))
    # The mean of differences from one element has no rounding error where all elements are equal.
    axes = range(x.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    first = [slice(None)] * x.ndim
    for each in axes if x.ndim else ():
        first[each] = slice(0, 1)
    shift = x.detach()[tuple(first)]
    return native.subtract(x, native.add(shift, mean(native.subtract(x, shift), axis=axis, keepdims=True)))


def std(x: Tensor, /, *, axis: Axes = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """Standard deviation over axes: square root of `var`, with the same arguments.

    The gradient is zero where all elements are equal.
    """
    distance = _distance_from_mean(as_inexact(x, "std"), axis)
    # Squares of float32 beyond 1e19 overflow, though the deviation does not.
    wide = native.cast(distance, _DOUBLE.get(distance.dtype, distance.dtype))
    divisor = float(builtins.max(_count(x, axis) - correction, 0))
    deviation = root(native.divide(native.sum(squares(wide), axis, keepdims), divisor))
    return _cast_back(native.cast(deviation, real_type(distance.dtype)), x)


@computes_in("float32")
def logsumexp(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Logarithm of the sum of exponentials over axes, without overflow."""
    wide = x if x.dtype in dtypes.INEXACT else native.cast(x, dtypes.default_dtype())
    most = native.max(wide.detach(), axis, True)
    most = native.where(native.isfinite(most), most, 0)
    total = native.log(native.sum(native.exp(native.subtract(wide, most)), axis, keepdims))
    return native.add(total, most if keepdims else native.reshape(most, total.shape))


class MinMax(NamedTuple):
    """Result of `aminmax`."""

    min: Any
    max: Any


def aminmax(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> MinMax:
    """Return the smallest and the largest element over an axis, or of all."""
    return MinMax(native.min(x, axis, keepdims), native.max(x, axis, keepdims))


def std_mean(
    x: Tensor, /, *, axis: Axes = None, correction: float = 0.0, keepdims: bool = False
) -> tuple[Tensor, Tensor]:
    """Standard deviation and mean over axes, with the arguments of `var`."""
    return std(x, axis=axis, correction=correction, keepdims=keepdims), mean(x, axis=axis, keepdims=keepdims)


def var_mean(
    x: Tensor, /, *, axis: Axes = None, correction: float = 0.0, keepdims: bool = False
) -> tuple[Tensor, Tensor]:
    """Variance and mean over axes, with the arguments of `var`."""
    return var(x, axis=axis, correction=correction, keepdims=keepdims), mean(x, axis=axis, keepdims=keepdims)


@computes_in("inputs")
def nansum(
    x: Tensor, /, *, axis: Axes = None, dtype: DTypeLike | None = None, keepdims: bool = False
) -> Tensor:
    """Sum over axes of the elements that are not NaN."""
    return sum(native.where(native.isnan(x), 0, x), axis=axis, dtype=dtype, keepdims=keepdims)


@computes_in("inputs")
def nanmean(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Mean over axes of the elements that are not NaN."""
    total = nansum(x, axis=axis, keepdims=keepdims)
    return native.divide(total, native.sum(native.logical_not(native.isnan(x)), axis, keepdims))


@computes_in("float32")
def dist(x1: Tensor, x2: Tensor, /, *, p: float = 2) -> Tensor:
    """Norm of order `p` of the difference of two tensors that broadcast."""
    difference = native.abs(native.subtract(x1, x2))
    if p == 0:
        return native.cast(native.sum(native.not_equal(difference, 0)), difference.dtype)
    if math.isinf(p):
        return (native.max if p > 0 else native.min)(difference)
    return native.sum(difference) if p == 1 else power_norm(difference, p, None)


# --- along one axis ---------------------------------------------------------------------------------------


def _cumulative(
    name: str, x: Tensor, axis: int | None, dtype: DTypeLike | None, initial: int | None
) -> Tensor:
    if x.ndim == 0 and axis is not None:  # as in PyTorch
        return native.reshape(_cumulative(name, native.reshape(x, (1,)), 0, dtype, initial), ())
    if axis is None:
        if x.ndim > 1:
            raise ShapeError(f"[{name}] a tensor with {x.ndim} dimensions; give the axis")
        axis = 0
        x = native.reshape(x, (1,)) if x.ndim == 0 else x
    found = getattr(native, {"cumulative_sum": "cumsum", "cumulative_prod": "cumprod"}[name])(
        _cast_for_sum(x, dtype, name), axis
    )
    if dtype is not None:
        found = native.cast(found, dtypes.as_dtype(dtype))
    if initial is None:
        return found
    shape = list(found.shape)
    shape[axis] = 1
    return native.concat([native.full(tuple(shape), initial, found.dtype), found], axis)


def cumulative_sum(
    x: Tensor, /, *, axis: int | None = None, dtype: DTypeLike | None = None, include_initial: bool = False
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
    x: Tensor, /, *, axis: int | None = None, dtype: DTypeLike | None = None, include_initial: bool = False
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

    Raises
    ------
    ValueError
        If `n` is negative.

    """
    if n < 0:
        raise ArgumentError(f"[diff] n={n}; give 0 or more")
    if n == 0:
        return native.copy(x)
    parts = [each for each in (prepend, x, append) if each is not None]
    if len(parts) > 1:
        x = native.concat(parts, axis)
    at = axis % x.ndim
    for _ in range(builtins.min(n, x.shape[at])):  # the result is empty from there on
        x = native.subtract(x[on_axis(at, slice(1, None))], x[on_axis(at, slice(None, -1))])
    return x


def cummax(x: Tensor, /, *, axis: int) -> Selected:
    """Return the largest element up to each one along an axis, and its index: of equal ones the last."""
    return _running(x, axis, True)


def cummin(x: Tensor, /, *, axis: int) -> Selected:
    """Return the smallest element up to each one along an axis, and its index: of equal ones the last."""
    return _running(x, axis, False)


def _running(x: Tensor, axis: int, largest: bool) -> Selected:
    if x.ndim == 0:
        return Selected(native.copy(x), native.full((), 0, dtypes.int64))
    indices = native.running_extreme(x, axis, largest)
    return Selected(native.take_along_axis(x, indices, axis), indices)


def logcumsumexp(x: Tensor, /, *, axis: int) -> Tensor:
    """Logarithm of the sum of exponentials of each element and all before it, without overflow."""
    return native.logcumsumexp(x, axis) if x.ndim else native.copy(x)


def _doubled_trapezoids(y: Any, x: Tensor | None, dx: Any, axis: int) -> Tensor:
    """Return twice the trapezoid areas between neighbours along an axis."""
    at = axis % y.ndim
    if x is None:
        width = dx
    elif x.ndim == 1:
        width = native.reshape(diff(x), (-1, *(1,) * (y.ndim - at - 1)))
    else:
        width = diff(x, axis=axis)
    pairs = native.add(y[on_axis(at, slice(1, None))], y[on_axis(at, slice(None, -1))])
    return native.multiply(pairs, width)


def trapezoid(y: Tensor, x: Tensor | None = None, /, *, dx: float = 1, axis: int = -1) -> Tensor:
    """Integral along an axis by the trapezoidal rule.

    Parameters
    ----------
    y
        Values of the function.
    x
        Where they were taken: a vector, or a tensor that broadcasts with `y`.
    dx
        Their distance, where `x` is not given.
    axis
        The axis.

    """
    return native.divide(native.sum(_doubled_trapezoids(y, x, dx, axis), axis), 2.0)


def cumulative_trapezoid(y: Tensor, x: Tensor | None = None, /, *, dx: float = 1, axis: int = -1) -> Tensor:
    """`trapezoid` of each element but the first and all before it."""
    return native.divide(native.cumsum(_doubled_trapezoids(y, x, dx, axis), axis), 2.0)
