"""Sorting, searching, sets, and elements at given places."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from accelera.errors import ArgumentError, ShapeError
from accelera.tensora import dtypes
from accelera.tensora.amp import computes_in
from accelera.tensora.core import DType, Tensor, native, require_tensors
from accelera.tensora.manipulation import broadcast_shapes
from accelera.tensora.typing import Scalar


class UniqueAll(NamedTuple):
    """Result of `unique_all`."""

    values: Any
    indices: Any
    inverse_indices: Any
    counts: Any


class UniqueCounts(NamedTuple):
    """Result of `unique_counts`."""

    values: Any
    counts: Any


class UniqueInverse(NamedTuple):
    """Result of `unique_inverse`."""

    values: Any
    inverse_indices: Any


class Selected(NamedTuple):
    """Elements of a tensor and their indices along an axis."""

    values: Any
    indices: Any


# --- sorting ----------------------------------------------------------------------------------------------


def argsort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:  # noqa: ARG001
    """Indices that sort a tensor along an axis.

    Parameters
    ----------
    x
        Tensor. Complex numbers are compared by their real parts, then by their imaginary parts.
    axis
        The axis.
    descending
        Largest first. NaN comes last either way.
    stable
        Equal elements always keep their order; the argument is the array API's.

    """
    require_tensors(x)
    if x.ndim == 0:
        return native.full((), 0, native.dtype.int64)
    return native.argsort(x, axis, descending)


def sort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Elements in order along an axis; the arguments are those of `argsort`. Differentiable."""
    require_tensors(x)
    if x.ndim == 0:
        return native.copy(x)
    return native.take_along_axis(x, argsort(x, axis=axis, descending=descending, stable=stable), axis)


def topk(x: Tensor, k: int, /, *, axis: int = -1, largest: bool = True) -> Selected:
    """Return the `k` largest (or smallest) elements along an axis in order, and their indices.

    NaN counts as less than every number, and as greater with ``largest=False``.

    Raises
    ------
    ValueError
        If the axis has less than `k` elements.

    """
    if x.ndim == 0:
        if k > 1:
            raise ShapeError(f"[topk] {k} elements of a 0-d tensor")
        return Selected(native.copy(x), native.full((), 0, dtypes.int64))
    indices = native.argsort(x, axis, largest, k)
    return Selected(native.take_along_axis(x, indices, axis), indices)


# --- searching --------------------------------------------------------------------------------------------


def _extreme(find: Any, x: Tensor, axis: int | None, keepdims: bool) -> Tensor:
    if axis is not None and x.ndim:
        return find(x, axis, keepdims)
    found = find(native.reshape(x, (x.size,)), 0, False)
    return native.reshape(found, (1,) * x.ndim) if keepdims else found


def argmax(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Index of the first largest element along an axis, or in the flattened tensor; of NaN if there is one.

    Raises
    ------
    ValueError
        If there are no elements.

    """
    return _extreme(native.argmax, x, axis, keepdims)


def argmin(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Index of the first smallest element along an axis, or in the flattened tensor; of NaN if there is one.

    Raises
    ------
    ValueError
        If there are no elements.

    """
    return _extreme(native.argmin, x, axis, keepdims)


def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """Indices of the elements other than zero, one vector for each axis.

    Raises
    ------
    ValueError
        If the tensor has no axis.

    """
    if x.ndim == 0:
        raise ShapeError("[nonzero] a 0-d tensor has no axis to give indices of")
    return tuple(native.nonzero(x))


def searchsorted(x1: Tensor, x2: Tensor, /, *, side: str = "left", sorter: Tensor | None = None) -> Tensor:
    """Index at which each element of `x2` would have to be inserted into `x1` to keep it sorted.

    Parameters
    ----------
    x1
        Vector in ascending order, or with `sorter`; or as many vectors on the last axis as `x2` has.
    x2
        Tensor of any shape, or a number.
    side
        "left": before equal elements; "right": behind them.
    sorter
        Indices that sort `x1`.

    """
    if side not in ("left", "right"):
        raise ArgumentError(f"[searchsorted] side={side!r}; give 'left' or 'right'")
    if not isinstance(x2, Tensor):
        x2 = native.asarray(x2)
    in_order = x1 if sorter is None else native.take_along_axis(x1, sorter, x1.ndim - 1)
    return native.searchsorted(in_order, x2, side == "right")


# --- sets -------------------------------------------------------------------------------------------------


def unique_all(x: Tensor, /, *, axis: int | None = None) -> UniqueAll:
    """Return the different elements in order, where each is first, the place of each element, and counts.

    With an axis slices along it are compared, element after element. Every NaN is an element of its own; -0.0
    and 0.0 are one.
    """
    if axis is None:
        return UniqueAll(*native.unique(x))
    rows = _slices_as_rows(x, axis)
    order = native.arange(rows.shape[0])
    for i in range(rows.shape[1] - 1, -1, -1):
        order = native.take(order, native.argsort(native.take(rows[:, i], order, 0), 0, False), 0)
    return _runs(x, rows, order, axis)


def _slices_as_rows(x: Tensor, axis: int) -> Tensor:
    """Slices along an axis as rows."""
    at = axis % x.ndim
    moved = native.permute(x, (at, *(i for i in range(x.ndim) if i != at)))
    return native.reshape(moved, (x.shape[at], x.size // x.shape[at] if x.size else 0))


def _runs(x: Tensor, rows: Any, order: Any, axis: int) -> UniqueAll:
    """Group equal rows: first row of each group and its index, group of each row, and group sizes."""
    n = rows.shape[0]
    in_order = native.take(rows, order, 0)
    differs = native.any(native.not_equal(in_order[1:], in_order[:-1]), 1)
    starts = native.concat([native.full((min(n, 1),), True, dtypes.bool), differs], 0)
    places = native.nonzero(starts)[0]
    indices = native.take(order, places, 0)
    run_of = native.subtract(native.cumsum(starts, 0), 1)
    inverse = native.put(native.full((n,), 0, dtypes.int64), order, run_of, 0)
    ends = native.concat([places[1:], native.full((min(n, 1),), n, dtypes.int64)], 0)
    return UniqueAll(native.take(x, indices, axis % x.ndim), indices, inverse, native.subtract(ends, places))


def unique_counts(x: Tensor, /) -> UniqueCounts:
    """Return the different elements in order, and how often each occurs; see `unique_all`."""
    values, _, _, counts = native.unique(x)
    return UniqueCounts(values, counts)


def unique_inverse(x: Tensor, /) -> UniqueInverse:
    """Return the different elements in order, and the place of each element among them; see `unique_all`."""
    values, _, inverse, _ = native.unique(x)
    return UniqueInverse(values, inverse)


def unique_values(x: Tensor, /) -> Tensor:
    """Return the different elements in order; see `unique_all`."""
    return native.unique(x)[0]


# --- elements at places -----------------------------------------------------------------------------------


def take(x: Tensor, indices: Tensor, /, *, axis: int | None = None) -> Tensor:
    """Slices of a tensor at the given indices of an axis, which may be left out for a vector.

    Raises
    ------
    IndexError
        If an index is out of range.

    """
    if axis is None:
        if x.ndim != 1:
            raise ShapeError(f"[take] a tensor with {x.ndim} dimensions; give the axis")
        axis = 0
    return native.take(x, indices, axis)


def take_along_axis(x: Tensor, indices: Tensor, /, *, axis: int = -1) -> Tensor:
    """For each index the element of its line along an axis: ``out[i][j] = x[i][indices[i][j]]`` for axis 1.

    Parameters
    ----------
    x
        Tensor.
    indices
        Integers, of a shape that broadcasts with that of `x` but for the axis.
    axis
        The axis.

    Raises
    ------
    IndexError
        If an index is out of range.

    """
    if x.ndim != indices.ndim:
        raise ShapeError(
            f"[take_along_axis] indices of shape {indices.shape} for a tensor of shape {x.shape}"
        )
    at = axis % x.ndim
    shape = [max(a, b) if 1 in (a, b) else a for a, b in zip(x.shape, indices.shape, strict=True)]
    shape[at] = indices.shape[at]
    indices = native.expand(indices, tuple(shape))
    shape[at] = x.shape[at]
    return native.take_along_axis(native.expand(x, tuple(shape)), indices, axis)


def index_select(x: Tensor, indices: Tensor, /, *, axis: int) -> Tensor:
    """Slices at the indices of an axis, as `take`; a 0-d tensor counts as one with a single element."""
    return native.take(x, indices, axis) if x.ndim else native.copy(x)


def argwhere(x: Tensor, /) -> Tensor:
    """Indices of the elements other than zero, one row for each, of shape ``(n, x.ndim)``."""
    if x.ndim == 0:
        return native.full((int(x.item() != 0), 0), 0, dtypes.int64)
    found = native.nonzero(x)
    return native.concat([native.reshape(each, (each.size, 1)) for each in found], 1)


def isin(x: Tensor, values: Tensor, /, *, invert: bool = False) -> Tensor:
    """Mask of the elements that are among the values (with `invert`: that are not)."""
    in_order = sort(native.reshape(values, (values.size,)))
    if values.size == 0:
        found = native.full(tuple(x.shape), False, dtypes.bool)
    else:
        place = native.minimum(native.searchsorted(in_order, x, False), values.size - 1)
        found = native.equal(native.take(in_order, place, 0), x)
    return native.logical_not(found) if invert else found


def bucketize(x: Tensor | float, boundaries: Tensor, /, *, right: bool = False) -> Tensor:
    """Index of the bucket between ascending boundaries that each element falls into; int64.

    With ``right=False`` a bucket includes its upper boundary, otherwise the lower one.
    """
    values = x if isinstance(x, Tensor) else native.asarray(x)
    return native.searchsorted(boundaries, values, right)


def unravel_index(indices: Tensor, shape: Any, /) -> tuple[Tensor, ...]:
    """Return coordinates of indices into a flattened tensor of this shape, a tensor for each axis."""
    found = []
    for extent in (shape if isinstance(shape, (tuple, list)) else (shape,))[::-1]:
        found.append(native.remainder(indices, extent))
        indices = native.floor_divide(indices, extent)
    return tuple(found[::-1])


def unique_consecutive(x: Tensor, /, *, axis: int | None = None) -> UniqueAll:
    """Return elements (or slices along an axis) that differ from the one before; as `unique_all`."""
    lines = native.reshape(x, (x.size,)) if axis is None else x
    at = 0 if axis is None else axis
    found = _runs(lines, _slices_as_rows(lines, at), native.arange(lines.shape[at]), at)
    return (
        found
        if axis is not None
        else found._replace(inverse_indices=native.reshape(found[2], tuple(x.shape)))
    )


# --- writing to places ------------------------------------------------------------------------------------


def _lined(x: Tensor) -> Tensor:
    """The tensor, or a 0-d one as a vector."""
    return x if x.ndim else native.reshape(x, (1,))


def gather(x: Tensor, indices: Tensor, /, *, axis: int) -> Tensor:
    """Elements at indices along an axis: ``out[i][j] = x[indices[i][j]][j]`` for axis 0.

    Nothing is broadcast: the indices may have smaller extents, and give the shape of the result.
    """
    if indices.size == 0:
        return native.full(tuple(indices.shape), 0, x.dtype)
    return native.reshape(native.take_along_axis(_lined(x), _lined(indices), axis), tuple(indices.shape))


def scatter_add(x: Tensor, indices: Tensor, values: Tensor, /, *, axis: int) -> Tensor:
    """Tensor with values added at the places that `gather` would take them from."""
    at = axis % max(x.ndim, 1)
    values = _lined(values)[tuple(slice(n) for n in _lined(indices).shape)]
    return native.reshape(native.scatter_add(_lined(x), _lined(indices), values, at), tuple(x.shape))


def scatter(x: Tensor, indices: Tensor, values: Any, /, *, axis: int) -> Tensor:
    """Tensor with values (a tensor or a number) at the places that `gather` would take them from.

    Of several values for one place the last one in row-major order is taken.
    """
    indices = _lined(indices)
    if not isinstance(values, Tensor):
        values = native.full(tuple(indices.shape), values, x.dtype)
    values = native.reshape(_lined(values)[tuple(slice(n) for n in indices.shape)], (indices.size,))
    places = native.reshape(_places(_lined(x), indices, axis), (indices.size,))
    return native.reshape(native.put(native.reshape(x, (x.size,)), places, values, 0), tuple(x.shape))


def _places(x: Tensor, indices: Any, axis: int) -> Tensor:
    """Index into the flattened tensor of each place that `gather` would take."""
    at, place, step = axis % x.ndim, 0, 1
    for i in range(x.ndim - 1, -1, -1):
        shape = (-1, *(1,) * (x.ndim - i - 1))
        digit = indices if i == at else native.reshape(native.arange(indices.shape[i]), shape)
        if i == at:
            digit = native.where(native.less(indices, 0), native.add(indices, x.shape[i]), indices)
        place, step = native.add(native.multiply(digit, step), place), step * x.shape[i]
    return native.expand(place, tuple(indices.shape))


def scatter_reduce(
    x: Tensor, indices: Tensor, values: Tensor, /, *, axis: int, reduce: str, include_self: bool = True
) -> Tensor:
    """Tensor with the sum, product, mean or an extreme of values at the places that `gather` would take.

    Parameters
    ----------
    x
        Tensor of a real type.
    indices, values
        As for `scatter_add`.
    axis
        The axis that indices are on.
    reduce
        "sum", "prod", "mean", "amin" or "amax"; elements that are equally extreme share the gradient.
    include_self
        Whether the elements of `x` at these places take part.

    """
    if reduce not in ("sum", "prod", "mean", "amin", "amax"):
        raise ArgumentError(
            f"[scatter_reduce] reduce={reduce!r}; give 'sum', 'prod', 'mean', 'amin' or 'amax'"
        )
    shape, at = tuple(x.shape), axis % max(x.ndim, 1)
    x, indices = _lined(x), _lined(indices)
    values = _lined(values)[tuple(slice(n) for n in indices.shape)]
    one = native.full(tuple(indices.shape), 1, dtypes.int64)
    counts = native.scatter_add(native.full(tuple(x.shape), 0, dtypes.int64), indices, one, at)
    if not include_self:
        x = native.where(
            native.greater(counts, 0), native.cast(native.asarray(_start(reduce, x.dtype)), x.dtype), x
        )
    if reduce in ("sum", "mean"):
        found = native.scatter_add(x, indices, values, at)
    else:
        found = native.scatter_reduce(x, indices, values, at, ("prod", "amin", "amax").index(reduce))
    if reduce == "mean":
        counts = native.add(counts, 1) if include_self else native.maximum(counts, 1)
        divide = native.divide if x.dtype in dtypes.INEXACT else native.floor_divide
        found = native.cast(divide(found, native.cast(counts, x.dtype)), x.dtype)
    return native.reshape(found, shape)


def _start(reduce: str, dtype: DType) -> Any:
    """Number that changes nothing that it is reduced with."""
    if reduce in ("sum", "mean", "prod"):
        return int(reduce == "prod")
    limits = dtypes.iinfo(dtype) if dtype in dtypes.INTEGERS else None
    if reduce == "amin":
        return limits.max if limits else math.inf
    return limits.min if limits else -math.inf


def index_reduce(
    x: Tensor, indices: Tensor, values: Tensor, /, *, axis: int, reduce: str, include_self: bool = True
) -> Tensor:
    """`scatter_reduce` of slices along an axis, at the indices of a vector."""
    lined = _lined(values)
    at = axis % lined.ndim
    spread = native.reshape(_lined(indices), (-1, *(1,) * (lined.ndim - at - 1)))
    spread = native.expand(spread, tuple(lined.shape))
    return scatter_reduce(x, spread, lined, axis=axis, reduce=reduce, include_self=include_self)


def index_add(x: Tensor, indices: Tensor, values: Tensor, /, *, axis: int, alpha: Scalar = 1) -> Tensor:
    """Tensor with slices along an axis, times `alpha`, added at the given indices."""
    scaled = native.multiply(_lined(values), alpha)
    added = native.take_add(scaled, _lined(indices), tuple(_lined(x).shape), axis)
    return native.add(x, native.reshape(added, tuple(x.shape)))


@computes_in("widest")
def index_copy(x: Tensor, indices: Tensor, values: Tensor, /, *, axis: int) -> Tensor:
    """Tensor with slices along an axis at the given indices."""
    return native.reshape(native.put(_lined(x), _lined(indices), _lined(values), axis), tuple(x.shape))


def index_fill(x: Tensor, indices: Tensor, value: Tensor | Scalar, /, *, axis: int) -> Tensor:
    """Tensor with one number (or 0-d tensor) in all slices at the given indices of an axis."""
    lined, indices = _lined(x), _lined(indices)
    shape = list(lined.shape)
    shape[axis] = indices.size
    filled = native.expand(
        value if isinstance(value, Tensor) else native.asarray(value, x.dtype), tuple(shape)
    )
    return index_copy(x, indices, native.cast(filled, x.dtype), axis=axis)


@computes_in("widest")
def index_put(x: Tensor, indices: Any, values: Tensor, /, *, accumulate: bool = False) -> Tensor:
    """Tensor with ``x[indices] = values`` written to a copy; added with `accumulate`."""
    made = native.copy(x)
    if not accumulate:
        made[tuple(indices)] = values
        return made
    flat = native.reshape(native.arange(x.size), tuple(x.shape))[tuple(indices)]
    spread = native.reshape(native.expand(values, tuple(flat.shape)), (flat.size,))
    added = native.take_add(spread, native.reshape(flat, (flat.size,)), (x.size,), 0)
    return native.add(x, native.reshape(added, tuple(x.shape)))


def put(x: Tensor, indices: Tensor, values: Tensor, /, *, accumulate: bool = False) -> Tensor:
    """Tensor with values at indices into the flattened tensor; added with `accumulate`."""
    flat, places = native.reshape(x, (x.size,)), native.reshape(indices, (indices.size,))
    written = native.reshape(values, (values.size,))
    if accumulate:
        found = native.add(flat, native.take_add(written, places, (x.size,), 0))
    else:
        found = native.put(flat, places, written, 0)
    return native.reshape(found, tuple(x.shape))


def masked_fill(x: Tensor, mask: Tensor, value: Tensor | Scalar, /) -> Tensor:
    """Tensor with one number (or 0-d tensor) where the mask holds; both broadcast."""
    return native.where(mask, native.cast(value, x.dtype) if isinstance(value, Tensor) else value, x)


def masked_select(x: Tensor, mask: Tensor, /) -> Tensor:
    """Vector of the elements where the mask holds; both broadcast."""
    shape = broadcast_shapes(tuple(x.shape), tuple(mask.shape))
    return native.reshape(native.expand(x, shape)[native.expand(mask, shape)], (-1,))


def masked_scatter(x: Tensor, mask: Tensor, values: Tensor, /) -> Tensor:
    """Tensor with the first values, in order, where the mask holds; tensor and mask broadcast.

    Raises
    ------
    ValueError
        If there are fewer values than places.

    """
    shape = broadcast_shapes(tuple(x.shape), tuple(mask.shape))
    flat = native.reshape(native.expand(mask, shape), (-1,))
    places = native.nonzero(flat)[0]
    if places.size > values.size:
        raise ArgumentError(f"[masked_scatter] {values.size} values for {places.size} places")
    taken = native.reshape(values, (values.size,))[: places.size]
    found = native.put(native.reshape(native.expand(x, shape), (-1,)), places, taken, 0)
    return native.reshape(found, shape)
