"""Order statistics, covariances, histograms and slopes."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any, NamedTuple

from accelera.errors import ArgumentError, DTypeError, ShapeError
from accelera.tensora import dtypes
from accelera.tensora.amp import computes_in
from accelera.tensora.core import Tensor, native
from accelera.tensora.manipulation import concat, on_axis
from accelera.tensora.reductions import as_inexact, diff
from accelera.tensora.sort_search import Selected, sort

Axes = int | tuple[int, ...] | None


# --- covariances ------------------------------------------------------------------------------------------


def cov(
    x: Tensor, /, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None
) -> Tensor:
    """Covariances of variables.

    Parameters
    ----------
    x
        Matrix with a variable in each row and an observation in each column, or one variable.
    correction
        Subtracted from the number of observations that products are divided by.
    fweights
        Vector of integers: how often each observation counts.
    aweights
        Vector of weights of the observations.

    Returns
    -------
    Tensor
        Of shape ``(rows, rows)``; 0-d for one variable.

    """
    rows = native.reshape(x, (1, x.size)) if x.ndim < 2 else x
    wide = as_inexact(rows, "cov")
    weight: Any = None
    for each in (fweights, aweights):
        if each is not None:
            each = native.cast(each, dtypes.real_dtype(wide.dtype))
            weight = each if weight is None else native.multiply(weight, each)
    n = float(rows.shape[1]) if weight is None else native.sum(weight)
    weighted = wide if weight is None else native.multiply(wide, weight)
    centred = native.subtract(wide, native.divide(native.sum(weighted, -1, True), n))
    right = centred if weight is None else native.multiply(centred, weight)
    bias = (
        correction
        if aweights is None or not correction
        else _weighted_correction(weight, aweights, correction)
    )
    freedom = (
        builtins.max(n - bias, 0.0) if isinstance(n, float) else native.maximum(native.subtract(n, bias), 0.0)
    )
    conjugate = native.conj(right) if right.dtype in dtypes.KINDS["complex floating"] else right
    found = native.divide(native.matmul(centred, native.permute(conjugate, (1, 0))), freedom)
    return native.reshape(found, ()) if rows.shape[0] == 1 else found


def _weighted_correction(weight: Tensor, aweights: Any, correction: int) -> Any:
    total = native.sum(native.multiply(weight, native.cast(aweights, weight.dtype)))
    return native.multiply(native.divide(total, native.sum(weight)), correction)


def corrcoef(x: Tensor, /) -> Tensor:
    """Correlation coefficients of variables, with the shapes of `cov`."""
    found = cov(x)
    if found.ndim == 0:
        return native.divide(found, found)
    n = found.shape[0]
    own = native.as_strided(native.contiguous(found), (n,), (n + 1,), 0)
    root = native.sqrt(native.real(own) if own.dtype in dtypes.KINDS["complex floating"] else own)
    return native.divide(native.divide(found, root[:, None]), root[None, :])


# --- order statistics -------------------------------------------------------------------------------------


def kthvalue(x: Tensor, k: int, /, *, axis: int = -1, keepdims: bool = False) -> Selected:
    """Return the `k`-th smallest element along an axis, counted from 1, and its index."""
    if x.ndim == 0:
        return Selected(native.copy(x), native.full((), 0, dtypes.int64))
    at, n = axis % x.ndim, x.shape[axis]
    if not 1 <= k <= n:
        raise ShapeError(f"[kthvalue] k={k} for an axis with {n} elements; give a number from 1 to {n}")
    return _gather_selected(x, native.argsort(x, at, False)[on_axis(at, slice(k - 1, k))], at, keepdims)


def _gather_selected(x: Tensor, indices: Tensor, axis: int, keepdims: bool) -> Selected:
    """Return the elements at `indices`, whose axis has extent 1, and the indices."""
    values = native.take_along_axis(x, indices, axis)
    if keepdims:
        return Selected(values, indices)
    return Selected(values[on_axis(axis, 0)], indices[on_axis(axis, 0)])


def median(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor | Selected:
    """Middle element, the lower one of two, as PyTorch's; NaN where one is NaN.

    With an axis values and indices are returned, without one the median of all elements.
    """
    return _median(x, axis, keepdims, skips=False)


def nanmedian(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor | Selected:
    """`median` of the elements that are not NaN."""
    return _median(x, axis, keepdims, skips=True)


def _median(x: Tensor, axis: int | None, keepdims: bool, skips: bool) -> Any:
    if axis is None or x.ndim == 0:
        found = _median_along(native.reshape(x, (x.size,)), 0, False, skips)
        return found.values if axis is None else found
    return _median_along(x, axis % x.ndim, keepdims, skips)


def _median_along(x: Tensor, axis: int, keepdims: bool, skips: bool) -> Selected:
    n = x.shape[axis]
    if n == 0:
        raise ShapeError(f"[median] shape {x.shape} has no element along the axis")
    order = native.argsort(x, axis, False)
    numbers = native.sum(native.logical_not(native.isnan(x)), axis, True)
    middle = native.floor_divide(native.subtract(numbers, 1), 2)
    if skips:
        place = native.maximum(middle, 0)
    else:  # NaN is sorted behind all others
        place = native.where(native.less(numbers, n), numbers, (n - 1) // 2)
    return _gather_selected(x, native.take_along_axis(order, place, axis), axis, keepdims)


def mode(x: Tensor, /, *, axis: int = -1, keepdims: bool = False) -> Selected:
    """Return the most frequent element along an axis (on a tie the smallest), and its last index."""
    if x.ndim == 0:
        return Selected(native.copy(x), native.full((), 0, dtypes.int64))
    at, n = axis % x.ndim, x.shape[axis]
    order = native.argsort(x.detach(), at, False)
    in_order = native.take_along_axis(x.detach(), order, at)
    places = native.expand(native.reshape(native.arange(n), (n, *(1,) * (x.ndim - at - 1))), tuple(x.shape))
    same = native.equal(in_order[on_axis(at, slice(1, None))], in_order[on_axis(at, slice(None, -1))])
    starts = concat([native.full((*x.shape[:at], 1, *x.shape[at + 1 :]), False, dtypes.bool), same], axis=at)
    began = native.where(starts, 0, places)
    began = native.take_along_axis(began, native.running_extreme(began, at, True), at)
    longest = native.argmax(native.subtract(places, began), at, True)
    return _gather_selected(x, native.take_along_axis(order, longest, at), at, keepdims)


_MAX_SINGLE_RANK = 2**22
INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


@computes_in("float32")
def quantile(
    x: Tensor,
    q: Tensor | float | Sequence[float],
    /,
    *,
    axis: int | None = None,
    keepdims: bool = False,
    interpolation: str = "linear",
) -> Tensor:
    """Quantiles along an axis, or of all elements.

    Parameters
    ----------
    x
        Tensor of a floating-point type.
    q
        Number from 0 to 1, or a vector of them, which makes the first axis of the result.
    axis
        The axis; None: the flattened tensor.
    keepdims
        Keep the axis, with extent 1.
    interpolation
        Between the two nearest elements: "linear", "lower", "higher", "midpoint" or "nearest".

    Raises
    ------
    TypeError
        If the elements are no floating-point numbers.
    ValueError
        If the axis is empty, or a level is NaN or outside of the range.

    """
    return _quantile(x, q, axis, keepdims, interpolation, skips=False)


@computes_in("float32")
def nanquantile(
    x: Tensor,
    q: Tensor | float | Sequence[float],
    /,
    *,
    axis: int | None = None,
    keepdims: bool = False,
    interpolation: str = "linear",
) -> Tensor:
    """`quantile` of the elements that are not NaN."""
    return _quantile(x, q, axis, keepdims, interpolation, skips=True)


def _quantile(x: Tensor, q: Any, axis: int | None, keepdims: bool, interpolation: str, skips: bool) -> Tensor:
    if interpolation not in INTERPOLATIONS:
        raise ArgumentError(
            f"[quantile] interpolation={interpolation!r}; give one of {', '.join(INTERPOLATIONS)}"
        )
    if x.dtype not in dtypes.KINDS["real floating"]:
        raise DTypeError(f"[quantile] elements of type {x.dtype.name}; convert with .to(float32)")
    length = x.size if axis is None or x.ndim == 0 else x.shape[axis]
    if length == 0:
        raise ShapeError(f"[quantile] shape {tuple(x.shape)} has no element along the axis")
    # Ranks of long axes are no float32 numbers, and those of shorter ones no float16 numbers.
    is_double = x.dtype == dtypes.float64 or length > _MAX_SINGLE_RANK
    kind = dtypes.float64 if is_double else dtypes.float32
    levels = native.cast(q, kind) if isinstance(q, Tensor) else native.asarray(q, kind)
    if levels.ndim > 1 or not builtins.bool(native.all(native.logical_and(levels >= 0, levels <= 1))):
        raise ArgumentError("[quantile] q must be a number or a vector of numbers from 0 to 1")
    at = 0 if axis is None or x.ndim == 0 else axis % x.ndim
    lines = native.reshape(x, (x.size,)) if axis is None or x.ndim == 0 else x
    kept = (1,) * x.ndim if axis is None else (*x.shape[:at], 1, *x.shape[at + 1 :]) if x.ndim else ()
    found = _interpolated(lines, native.reshape(levels, (levels.size,)), at, interpolation, skips)
    order = (at, *(i for i in range(lines.ndim) if i != at))
    found = native.permute(found, order)
    rest = kept if keepdims else tuple(found.shape[1:])
    return native.reshape(found, (*levels.shape, *rest))


def _interpolated(x: Tensor, levels: Tensor, axis: int, interpolation: str, skips: bool) -> Tensor:
    """Return the quantiles along an axis; that axis of the result has an element for each level."""
    in_order = sort(x, axis=axis)
    shape = (levels.size, *(1,) * (x.ndim - axis - 1))
    numbers = native.sum(native.logical_not(native.isnan(x)), axis, True)
    ranks = native.multiply(native.reshape(levels, shape), native.cast(numbers - 1, levels.dtype))
    if not skips:
        ranks = native.where(
            native.less(numbers, x.shape[axis]), float(x.shape[axis] - 1), native.maximum(ranks, 0.0)
        )
    ranks = native.maximum(ranks, 0.0)
    if interpolation in ("lower", "higher", "nearest"):
        whole = {"lower": native.floor, "higher": native.ceil, "nearest": native.round}[interpolation](ranks)
        return native.take_along_axis(in_order, native.cast(whole, dtypes.int64), axis)
    below = native.floor(ranks)
    weight = native.subtract(ranks, below) if interpolation == "linear" else native.full((), 0.5, x.dtype)
    low, high = (
        native.take_along_axis(in_order, native.cast(each, dtypes.int64), axis)
        for each in (below, native.ceil(ranks))
    )
    return native.lerp(low, high, native.cast(weight, x.dtype))


# --- histograms -------------------------------------------------------------------------------------------


class Histogram(NamedTuple):
    """Counts (or densities) of the bins, and the edges of the bins."""

    hist: Any
    bin_edges: Any


def bincount(x: Tensor, weights: Tensor | None = None, /, *, minlength: int = 0) -> Tensor:
    """Count of each integer 0, 1, ... in a vector, or the sum of the weights where it occurs.

    Raises
    ------
    ValueError
        If an integer is negative, or `x` is no vector.

    """
    if x.ndim != 1 or (x.size and native.min(x).item() < 0):
        raise ShapeError(f"[bincount] shape {x.shape}; give a vector of integers that are not negative")
    n = builtins.max(native.max(x).item() + 1 if x.size else 0, minlength)
    counted = native.full(tuple(x.shape), 1, dtypes.int64) if weights is None else weights
    if weights is not None and weights.dtype not in dtypes.INEXACT:
        counted = native.cast(weights, dtypes.float64)
    return native.take_add(counted, native.cast(x, dtypes.int64), (n,), 0)


def histc(x: Tensor, bins: int = 100, /, *, min: float = 0, max: float = 0) -> Tensor:  # noqa: A002
    """Histogram with `bins` equal bins from `min` to `max`: counts, in the type of `x`.

    If `min` equals `max`, the range is that of the elements. Elements outside of the range are not counted.
    """
    low, high = _value_range(x, min, max)
    if bins < 1:
        raise ArgumentError(f"[histc] bins={bins}; give at least 1")
    inside = x[native.logical_and(native.greater_equal(x, low), native.less_equal(x, high))]
    place = native.cast(
        native.multiply(native.divide(native.subtract(inside, low), high - low), bins), dtypes.int64
    )
    place = native.minimum(place, bins - 1)
    return native.take_add(native.full(tuple(place.shape), 1, x.dtype), place, (bins,), 0)


def _value_range(x: Tensor, low: float, high: float) -> tuple[float, float]:
    if low == high and x.size:
        low, high = native.min(x).item(), native.max(x).item()
    return (low - 1, high + 1) if low == high else (low, high)


def histogram(
    x: Tensor,
    bins: Any,
    /,
    *,
    range: Sequence[float] | None = None,  # noqa: A002
    weight: Tensor | None = None,
    density: bool = False,
) -> Histogram:
    """Counts of elements in bins.

    Parameters
    ----------
    x
        Tensor of float32 or float64.
    bins
        Number of equal bins, or a vector of their ascending edges; the last edge belongs to the last bin.
    range
        Lowest and highest edge where `bins` is a number; those of the elements by default.
    weight
        Weight of each element, of the shape of `x`.
    density
        Divide by the sum of weights and the widths of bins.

    """
    flat = native.reshape(x, (x.size,))
    edges = bins
    if not isinstance(bins, Tensor):
        low, high = range or (0.0, 0.0 if x.size else 1.0)
        if range is None and x.size:
            low, high = native.min(x).item(), native.max(x).item()
        low, high = (low - 0.5, high + 0.5) if low == high else (low, high)
        steps = native.cast(native.arange(bins + 1), dtypes.float64)
        edges = native.cast(native.add(native.multiply(steps, (high - low) / bins), low), x.dtype)
        edges[-1] = high
    n = edges.size - 1
    place = native.subtract(native.searchsorted(edges, flat, True), 1)
    place = native.where(native.equal(flat, edges[-1]), n - 1, place)
    inside = native.logical_and(native.greater_equal(place, 0), native.less(place, n))
    weights = (
        native.full((flat.size,), 1, x.dtype) if weight is None else native.reshape(weight, (flat.size,))
    )
    counts = native.take_add(weights[inside], place[inside], (n,), 0)
    if density:
        counts = native.divide(native.divide(counts, native.sum(counts)), diff(edges))
    return Histogram(counts, edges)


# --- slopes -----------------------------------------------------------------------------------------------


def gradient(x: Tensor, /, *, spacing: Any = 1, axis: Axes = None, edge_order: int = 1) -> list[Tensor]:
    """Derivatives along axes by central differences, at the ends by differences to one side.

    Parameters
    ----------
    x
        Values of the function at the points of a grid.
    spacing
        Distance of the points, one for each axis, or a vector of coordinates for each axis.
    axis
        Axes, all by default.
    edge_order
        1 or 2: order of the differences at the ends.

    """
    axes = range(x.ndim) if axis is None else axis if isinstance(axis, Sequence) else (axis,)
    steps = spacing if isinstance(spacing, Sequence) else [spacing] * len(axes)
    if edge_order not in (1, 2) or len(steps) != len(axes):
        raise ShapeError(f"[gradient] edge_order={edge_order}, {len(steps)} spacings for {len(axes)} axes")
    return [
        _derivative_along(x, step, each % x.ndim, edge_order) for each, step in zip(axes, steps, strict=True)
    ]


def _derivative_along(x: Tensor, step: Any, axis: int, edge_order: int) -> Tensor:
    n = x.shape[axis]
    if n <= edge_order:
        raise ShapeError(f"[gradient] axis {axis} has {n} elements; {edge_order + 1} are needed")
    behind = (1,) * (x.ndim - axis - 1)
    if isinstance(step, Tensor) and step.ndim:
        widths = native.reshape(diff(step), (-1, *behind))
    else:
        widths = native.cast(native.full((n - 1, *behind), 1, x.dtype) * step, x.dtype)

    def part(start: int | None, stop: int | None) -> Tensor:
        return x[on_axis(axis, slice(start, stop))]

    a, b = widths[:-1], widths[1:]
    inner = (
        part(None, -2) * (-b / (a * (a + b)))
        + part(1, -1) * ((b - a) / (a * b))
        + part(2, None) * (a / (b * (a + b)))
    )
    if edge_order == 1:
        first, last = (part(1, 2) - part(0, 1)) / widths[:1], (part(-1, None) - part(-2, -1)) / widths[-1:]
    else:
        p, q = widths[:1], widths[1:2]
        first = (
            part(0, 1) * (-(2 * p + q) / (p * (p + q)))
            + part(1, 2) * ((p + q) / (p * q))
            - part(2, 3) * (p / (q * (p + q)))
        )
        p, q = widths[-2:-1], widths[-1:]
        last = (
            part(-3, -2) * (q / (p * (p + q)))
            - part(-2, -1) * ((p + q) / (p * q))
            + part(-1, None) * ((2 * q + p) / (q * (p + q)))
        )
    return concat([first, inner, last], axis=axis)
