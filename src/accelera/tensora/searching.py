"""Sorting, searching, sets, and elements at given places."""

from __future__ import annotations

from typing import Any, NamedTuple

from accelera.tensora.core import Tensor, native


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


class TopK(NamedTuple):
    """Result of `topk`."""

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
    if x.ndim == 0:
        return native.full((), 0, native.dtype.int64)
    return native.argsort(x, axis, descending)


def sort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Elements in order along an axis; the arguments are those of `argsort`. Differentiable."""
    if x.ndim == 0:
        return native.copy(x)
    return native.take_along_axis(x, argsort(x, axis=axis, descending=descending, stable=stable), axis)


def topk(x: Tensor, k: int, /, *, axis: int = -1, largest: bool = True) -> TopK:
    """Return the `k` largest (or smallest) elements along an axis in order, and their indices.

    NaN counts as less than every number, and as greater with ``largest=False``.

    Raises
    ------
    ValueError
        If the axis has less than `k` elements.

    """
    indices = native.argsort(x, axis, largest, k)
    return TopK(native.take_along_axis(x, indices, axis), indices)


# --- searching --------------------------------------------------------------------------------------------


def _extreme(find: Any, x: Any, axis: int | None, keepdims: bool) -> Any:
    if axis is not None:
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
        raise ValueError("nonzero: a 0-d tensor has no axis to give indices of")
    return tuple(native.nonzero(x))


def searchsorted(x1: Tensor, x2: Any, /, *, side: str = "left", sorter: Tensor | None = None) -> Tensor:
    """Index at which each element of `x2` would have to be inserted into `x1` to keep it sorted.

    Parameters
    ----------
    x1
        Vector in ascending order, or with `sorter`.
    x2
        Tensor of any shape, or a number.
    side
        "left": before equal elements; "right": behind them.
    sorter
        Indices that sort `x1`.

    """
    if side not in ("left", "right"):
        raise ValueError(f"searchsorted: side={side!r}; give 'left' or 'right'")
    if not isinstance(x2, Tensor):
        x2 = native.asarray(x2)
    in_order = x1 if sorter is None else native.take(x1, sorter, 0)
    return native.searchsorted(in_order, x2, side == "right")


# --- sets -------------------------------------------------------------------------------------------------


def unique_all(x: Tensor, /) -> UniqueAll:
    """Return the different elements in order, where each is first, the place of each element, and counts.

    Every NaN is an element of its own; -0.0 and 0.0 are one.
    """
    return UniqueAll(*native.unique(x))


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
            raise ValueError(f"take: a tensor with {x.ndim} dimensions; give the axis")
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
        raise ValueError(f"take_along_axis: indices of shape {indices.shape} for a tensor of shape {x.shape}")
    at = axis % x.ndim
    shape = [max(a, b) if 1 in (a, b) else a for a, b in zip(x.shape, indices.shape, strict=True)]
    shape[at] = indices.shape[at]
    indices = native.expand(indices, tuple(shape))
    shape[at] = x.shape[at]
    return native.take_along_axis(native.expand(x, tuple(shape)), indices, axis)
