"""Tensors in other shapes and orders: views where there is one, copies otherwise."""

from __future__ import annotations

import builtins
import itertools
import math
from collections.abc import Sequence

from accelera.errors import ArgumentError, IndexingError, ShapeError
from accelera.tensora import dtypes
from accelera.tensora.core import Tensor, native, require_tensors
from accelera.tensora.typing import TensorLike

Axes = int | tuple[int, ...]


def _axis(axis: int, n: int, name: str) -> int:
    """Axis counted from the front."""
    if not -n <= axis < n:
        raise IndexingError(
            f"[{name}] axis {axis} of a tensor with {n} dimensions; give one from {-n} to {n - 1}"
        )
    return axis % n


def _axes(axes: Axes | None, n: int, name: str) -> tuple[int, ...]:
    if axes is None:
        return tuple(range(n))
    return tuple(_axis(each, n, name) for each in (axes if isinstance(axes, (tuple, list)) else (axes,)))


def on_axis(axis: int, index: int | slice) -> tuple[int | slice, ...]:
    """Subscript that takes `index` on one axis, counted from the front, and all of the others."""
    return (*(slice(None),) * axis, index)


# --- shapes -----------------------------------------------------------------------------------------------


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Shape that tensors of these shapes have after broadcasting.

    Raises
    ------
    ValueError
        If two extents of one axis differ and none of them is 1.

    """
    n = builtins.max((len(each) for each in shapes), default=0)
    result = [1] * n
    for shape in shapes:
        for i, extent in enumerate(shape, n - len(shape)):
            if result[i] != 1 and extent not in (1, result[i]):
                raise ShapeError(f"[broadcast] shapes {', '.join(map(str, shapes))} do not fit at axis {i}")
            result[i] = extent if result[i] == 1 else result[i]
    return tuple(result)


def broadcast_to(x: Tensor, /, shape: tuple[int, ...]) -> Tensor:
    """View of a tensor in a larger shape: axes are added in front, those of extent 1 repeated."""
    return native.expand(x, tuple(shape))


def broadcast_arrays(*arrays: Tensor) -> list[Tensor]:
    """Views of all tensors in the shape that they have after broadcasting."""
    shape = broadcast_shapes(*(each.shape for each in arrays))
    return [native.expand(each, shape) for each in arrays]


def reshape(x: Tensor, /, shape: tuple[int, ...], *, copy: bool | None = None) -> Tensor:
    """Elements in another shape, in row-major order; one extent may be -1 and follows from the others.

    Parameters
    ----------
    x
        Tensor.
    shape
        New shape with the same number of elements.
    copy
        True: always copy. False: never. None: a view where there is one.

    Raises
    ------
    ValueError
        If the numbers of elements differ, or ``copy=False`` and no view has this shape.

    """
    if copy:
        return native.reshape(native.copy(x), shape)
    if copy is False and not native.can_view(x, shape):
        raise ShapeError(
            f"[reshape] no view of a tensor of shape {x.shape}, strides {x.strides} has shape {shape}"
        )
    return native.reshape(x, shape)


def flatten(x: Tensor, start_axis: int = 0, end_axis: int = -1) -> Tensor:
    """Axes from `start_axis` to `end_axis` (inclusive) as one."""
    if x.ndim == 0:
        return native.reshape(x, (1,))
    first, last = _axis(start_axis, x.ndim, "flatten"), _axis(end_axis, x.ndim, "flatten")
    return native.reshape(x, (*x.shape[:first], math.prod(x.shape[first : last + 1]), *x.shape[last + 1 :]))


def expand_dims(x: Tensor, /, axis: Axes = 0) -> Tensor:
    """View with an axis of extent 1 at each given place of the result.

    Raises
    ------
    IndexError
        If an axis is out of range.
    ValueError
        If one is given twice.

    """
    n = x.ndim + (len(axis) if isinstance(axis, tuple) else 1)
    places = _axes(axis, n, "expand_dims")
    if len(set(places)) != len(places):
        raise ShapeError(f"[expand_dims] an axis stands twice in {axis}")
    rest = iter(x.shape)
    return native.reshape(x, tuple(1 if i in places else next(rest) for i in range(n)))


def squeeze(x: Tensor, /, axis: Axes | None = None) -> Tensor:
    """View without the given axes, which must have extent 1 (all such axes if None is given).

    Raises
    ------
    ValueError
        If a given axis has another extent.

    """
    if axis is None:
        return native.reshape(x, tuple(each for each in x.shape if each != 1))
    places = _axes(axis, x.ndim, "squeeze")
    for each in places:
        if x.shape[each] != 1:
            raise ShapeError(f"[squeeze] axis {each} of a tensor of shape {x.shape} is not of extent 1")
    return native.reshape(x, tuple(extent for i, extent in enumerate(x.shape) if i not in places))


# --- order ------------------------------------------------------------------------------------------------


def permute_dims(x: Tensor, /, axes: tuple[int, ...]) -> Tensor:
    """View with the axes in another order."""
    return native.permute(x, tuple(axes))


def moveaxis(x: Tensor, source: Axes, destination: Axes, /) -> Tensor:
    """View with some axes moved to other places; the rest keep their order.

    Raises
    ------
    ValueError
        If the numbers of axes and of places differ, or one is given twice.

    """
    sources, places = (_axes(each, x.ndim, "moveaxis") for each in (source, destination))
    if len(set(sources)) != len(set(places)) or len(sources) != len(places):
        raise ShapeError(
            f"[moveaxis] axes {source} and places {destination}; give as many of both, none twice"
        )
    order = [i for i in range(x.ndim) if i not in sources]
    for place, each in sorted(zip(places, sources, strict=True)):
        order.insert(place, each)
    return native.permute(x, tuple(order))


def swapaxes(x: Tensor, first: int, second: int, /) -> Tensor:
    """View with two axes exchanged."""
    if x.ndim == 0 and {first, second} <= {0, -1}:  # as in PyTorch
        return native.permute(x, ())
    order = list(range(x.ndim))
    a, b = _axis(first, x.ndim, "swapaxes"), _axis(second, x.ndim, "swapaxes")
    order[a], order[b] = order[b], order[a]
    return native.permute(x, tuple(order))


def flip(x: Tensor, /, *, axis: Axes | None = None) -> Tensor:
    """View with the order of elements reversed along the given axes (all if None)."""
    return native.flip(x, _axes(axis, x.ndim, "flip"))


def roll(x: Tensor, /, shift: Axes, *, axis: Axes | None = None) -> Tensor:
    """Elements moved along axes by a number of places; those that leave at one end enter at the other.

    Parameters
    ----------
    x
        Tensor.
    shift
        Places, one number or one for each axis.
    axis
        Axes. None: the flattened tensor.

    """
    if axis is None:
        flat = native.reshape(x, (x.size,))
        return native.reshape(roll(flat, shift, axis=0), x.shape)
    axes = axis if isinstance(axis, tuple) else (axis,)
    shifts = shift if isinstance(shift, tuple) else (shift,) * len(axes)
    axes = axes * len(shifts) if len(axes) == 1 else axes
    if len(shifts) != len(axes):
        raise ShapeError(f"[roll] {len(shifts)} shifts for {len(axes)} axes; give one for each")
    for n_places, each in zip(shifts, axes, strict=True):
        at = _axis(each, x.ndim, "roll")
        extent = x.shape[at]
        if extent and n_places % extent:
            head, tail = split(x, [extent - n_places % extent], axis=at)
            x = native.concat([tail, head], at)
    return native.copy(x)


# --- several tensors --------------------------------------------------------------------------------------


def concat(arrays: Sequence[Tensor], /, *, axis: int | None = 0) -> Tensor:
    """Tensors one after the other along an axis; the flattened tensors if `axis` is None.

    Raises
    ------
    ValueError
        If none is given, or their shapes differ in another axis.

    """
    require_tensors(*arrays)
    if axis is None:
        return native.concat([native.reshape(each, (each.size,)) for each in arrays], 0)
    if any(each.ndim > 1 for each in arrays):  # as in PyTorch, empty vectors fit to all shapes
        arrays = [each for each in arrays if each.shape != (0,)]
    return native.concat(list(arrays), axis)


def stack(arrays: Sequence[Tensor], /, *, axis: int = 0) -> Tensor:
    """Tensors of one shape along a new axis."""
    return native.concat([expand_dims(each, axis=axis) for each in arrays], axis)


def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """Views of all slices along an axis."""
    at = _axis(axis, x.ndim, "unstack")
    return tuple(x[on_axis(at, i)] for i in range(x.shape[at]))


def split(x: Tensor, sections: int | Sequence[int], /, *, axis: int = 0) -> list[Tensor]:
    """Views of parts along an axis: a number of equal ones, or those between the given indices.

    Raises
    ------
    ValueError
        If the extent is no multiple of the number of parts.

    """
    at = _axis(axis, x.ndim, "split")
    extent = x.shape[at]
    if isinstance(sections, int):
        if sections < 1 or extent % sections:
            raise ShapeError(
                f"[split] {extent} elements in {sections} equal parts; chunk() makes unequal ones"
            )
        sections = range(extent // sections, extent, extent // sections) if extent else [0] * (sections - 1)
    bounds = [0, *sections, extent]
    return [x[on_axis(at, slice(a, b))] for a, b in itertools.pairwise(bounds)]


def chunk(x: Tensor, n: int, /, *, axis: int = 0) -> list[Tensor]:
    """Views of at most `n` parts along an axis, all but the last of one size."""
    extent = x.shape[_axis(axis, x.ndim, "chunk")]
    size = builtins.max(-(-extent // n), 1)
    return split(x, range(size, extent, size), axis=axis)


# --- repetition -------------------------------------------------------------------------------------------


_MOST_ELEMENTS = 2**63 - 1


def repeat(x: Tensor, repeats: TensorLike, /, *, axis: int | None = None) -> Tensor:
    """Each element (or slice along an axis) several times.

    Parameters
    ----------
    x
        Tensor; flattened if `axis` is None.
    repeats
        How often: a number, or a vector of integers with one for each element of the axis.
    axis
        The axis.

    Raises
    ------
    ValueError
        When a number is negative, or the numbers are not one for each element.
    """
    if axis is None:
        x, axis = native.reshape(x, (x.size,)), 0
    at = _axis(axis, x.ndim, "repeat")
    n = x.shape[at]
    if isinstance(repeats, Tensor) and repeats.size == 1:
        repeats = repeats.item()
    if isinstance(repeats, int):
        if repeats < 0:
            raise ArgumentError(f"[repeat] {repeats} repetitions; give 0 or more")
        spread = native.expand(
            native.reshape(x, (*x.shape[: at + 1], 1, *x.shape[at + 1 :])),
            (*x.shape[: at + 1], repeats, *x.shape[at + 1 :]),
        )
        return native.copy(native.reshape(spread, (*x.shape[:at], n * repeats, *x.shape[at + 1 :])))
    counts = repeats if isinstance(repeats, Tensor) else native.asarray(repeats, dtypes.int64)
    if counts.shape != (n,):
        raise ShapeError(f"[repeat] numbers of shape {counts.shape} for an axis with {n} elements")
    counts = native.cast(counts, dtypes.int64)
    if n and native.min(counts, None, False).item() < 0:
        raise ArgumentError("[repeat] a number of repetitions is negative; give 0 or more")
    if (
        n
        and native.max(counts, None, False).item() > _MOST_ELEMENTS // n
        and sum(counts.tolist()) > _MOST_ELEMENTS
    ):
        raise ArgumentError(f"[repeat] the result would have more than {_MOST_ELEMENTS} elements")
    ends = native.cumsum(counts, 0)
    total = ends[-1].item() if n else 0
    return native.take(x, native.searchsorted(ends, native.arange(total), True), at)


def tile(x: Tensor, repetitions: int | tuple[int, ...], /) -> Tensor:
    """The whole tensor several times along each axis."""
    times = repetitions if isinstance(repetitions, tuple) else (repetitions,)
    n = builtins.max(len(times), x.ndim)
    times = (1,) * (n - len(times)) + tuple(times)
    shape = (1,) * (n - x.ndim) + tuple(x.shape)
    apart = tuple(extent for each in shape for extent in (1, each))
    wide = tuple(extent for pair in zip(times, shape, strict=True) for extent in pair)
    spread = native.expand(native.reshape(x, apart), wide)
    return native.copy(native.reshape(spread, tuple(a * b for a, b in zip(times, shape, strict=True))))


# --- parts ------------------------------------------------------------------------------------------------


def select(x: Tensor, axis: int, index: int, /) -> Tensor:
    """View of the slice at one index of an axis, which the result does not have."""
    return x[on_axis(_axis(axis, x.ndim, "select"), index)]


def narrow(x: Tensor, axis: int, start: int, length: int, /) -> Tensor:
    """View of `length` elements of an axis from `start` on; a negative `start` counts from the end.

    Raises
    ------
    ValueError
        If the axis has not as many elements.

    """
    at = _axis(axis, x.ndim, "narrow")
    extent = x.shape[at]
    first = int(start) + extent if start < 0 else int(start)
    if length < 0 or first < 0 or first + length > extent:
        raise ShapeError(f"[narrow] {length} elements from {start} of an axis with {extent}")
    return x[on_axis(at, slice(first, first + length))]


def unfold(x: Tensor, axis: int, size: int, step: int, /) -> Tensor:
    """Windows of `size` elements of an axis, every `step` elements; they lie on a new last axis."""
    if x.ndim == 0:
        return native.copy(native.expand(x, (size,)))
    at = _axis(axis, x.ndim, "unfold")
    if size > x.shape[at] or size < 0 or step < 1:
        raise ShapeError(f"[unfold] windows of {size}, step {step}, on an axis with {x.shape[at]} elements")
    n = (x.shape[at] - size) // step + 1
    starts = native.reshape(native.arange(n) * step, (n, 1))
    taken = native.take(x, starts + native.arange(size), at)
    return native.permute(taken, (*range(at + 1), *range(at + 2, x.ndim + 1), at + 1))


def unflatten(x: Tensor, axis: int, shape: tuple[int, ...], /) -> Tensor:
    """One axis as several, of which one extent may be -1."""
    at = _axis(axis, x.ndim, "unflatten")
    known = math.prod(n for n in shape if n != -1)
    extents = tuple(x.shape[at] // known if n == -1 and known else n for n in shape)
    return native.reshape(x, (*x.shape[:at], *extents, *x.shape[at + 1 :]))


def tensor_split(x: Tensor, sections: int | Sequence[int], /, *, axis: int = 0) -> list[Tensor]:
    """Views of parts along an axis: a number of them, the first longer by one, or those between indices."""
    if isinstance(sections, Tensor):
        sections = sections.tolist()
    if not isinstance(sections, int):
        return split(x, list(sections), axis=axis)
    if sections < 1:
        raise ArgumentError(f"[tensor_split] {sections} parts; give at least 1")
    size, longer = divmod(x.shape[_axis(axis, x.ndim, "tensor_split")], sections)
    sizes = [size + 1] * longer + [size] * (sections - longer)
    return split(x, list(itertools.accumulate(sizes))[:-1], axis=axis)


def hsplit(x: Tensor, sections: int | Sequence[int], /) -> list[Tensor]:
    """Parts along the second axis (the first of a vector); see `split`."""
    return split(x, sections, axis=0 if x.ndim == 1 else 1)


def vsplit(x: Tensor, sections: int | Sequence[int], /) -> list[Tensor]:
    """Parts along the first axis; see `split`."""
    return split(x, sections, axis=0)


def dsplit(x: Tensor, sections: int | Sequence[int], /) -> list[Tensor]:
    """Parts along the third axis; see `split`."""
    return split(x, sections, axis=2)


def sum_to_size(x: Tensor, shape: tuple[int, ...], /) -> Tensor:
    """Sum over the axes along which a tensor of this shape would be broadcast to the shape of `x`."""
    skip = x.ndim - len(shape)
    if skip < 0 or any(n not in (1, m) for n, m in zip(shape, x.shape[skip:], strict=True)):
        raise ShapeError(f"[sum_to_size] shape {shape} does not broadcast to {x.shape}")
    axes = tuple(i for i in range(x.ndim) if i < skip or (shape[i - skip] == 1 and x.shape[i] != 1))
    return native.reshape(native.sum(x, axes, True), shape) if axes else native.copy(x)


def as_strided(x: Tensor, shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0, /) -> Tensor:
    """Copy of the elements of the flattened tensor at ``offset + sum(strides * index)`` for each index."""
    places = native.as_strided(native.arange(x.size), shape, strides, offset)
    return native.take(native.reshape(x, (x.size,)), places, 0)


def as_strided_scatter(
    x: Tensor, values: Tensor, shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0, /
) -> Tensor:
    """Copy of a tensor with the elements that `as_strided` takes replaced."""
    places = native.reshape(native.as_strided(native.arange(x.size), shape, strides, offset), (-1,))
    flat = native.put(native.reshape(x, (x.size,)), places, native.reshape(values, (-1,)), 0)
    return native.reshape(flat, tuple(x.shape))


# --- more orders ------------------------------------------------------------------------------------------


def fliplr(x: Tensor, /) -> Tensor:
    """Second axis reversed."""
    return flip(x, axis=1)


def flipud(x: Tensor, /) -> Tensor:
    """First axis reversed."""
    return flip(x, axis=0)


def rot90(x: Tensor, k: int = 1, axes: tuple[int, int] = (0, 1), /) -> Tensor:
    """Quarter turns, `k` of them, from the first axis towards the second one."""
    a, b = _axes(tuple(axes), x.ndim, "rot90")
    if a == b:
        raise ShapeError(f"[rot90] axes {axes} are one")
    turns = k % 4
    if turns == 0:
        return native.copy(x)
    if turns == 2:
        return flip(x, axis=(a, b))
    turned = swapaxes(x, a, b)
    return flip(turned, axis=a if turns == 1 else b)


# --- joined -----------------------------------------------------------------------------------------------


def atleast_1d(x: Tensor, /) -> Tensor:
    """The tensor, or a 0-d one as a vector."""
    return x if x.ndim else native.reshape(x, (1,))


def atleast_2d(x: Tensor, /) -> Tensor:
    """The tensor with two axes at least: a vector is a row."""
    return x if x.ndim > 1 else native.reshape(x, (1, x.size))


def atleast_3d(x: Tensor, /) -> Tensor:
    """The tensor with three axes at least: a vector lies on the second, a matrix on the first two."""
    if x.ndim > 2:
        return x
    return native.reshape(x, (*x.shape, 1) if x.ndim == 2 else (1, x.size, 1))


def hstack(arrays: Sequence[Tensor], /) -> Tensor:
    """Tensors one after the other along the second axis, vectors along their only one."""
    parts = [atleast_1d(each) for each in arrays]
    return native.concat(parts, 0 if parts[0].ndim == 1 else 1)


def vstack(arrays: Sequence[Tensor], /) -> Tensor:
    """Tensors one after the other along the first axis; vectors are rows."""
    return native.concat([atleast_2d(each) for each in arrays], 0)


def dstack(arrays: Sequence[Tensor], /) -> Tensor:
    """Tensors one after the other along the third axis; see `atleast_3d`."""
    return native.concat([atleast_3d(each) for each in arrays], 2)


def column_stack(arrays: Sequence[Tensor], /) -> Tensor:
    """Tensors one after the other along the second axis; vectors are columns."""
    return native.concat(
        [each if each.ndim > 1 else native.reshape(each, (each.size, 1)) for each in arrays], 1
    )
