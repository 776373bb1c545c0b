"""Views of arrays: the elements shown and their order, as index arithmetic without any bytes."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import numpy as np

from accelera.errors import ArgumentError, IndexingError, ShapeError
from accelera.stores.regions import Region, check_shape, region_shape

Key = int | slice | EllipsisType | None


@dataclass(frozen=True)
class Viewing:
    """A transposed, sliced, reversed or broadcast look at an array of ``len(starts)`` axes.

    Element ``i`` of the view is element ``starts[b] + steps[b] * i[v]`` along each axis ``b`` of the
    array that view axis ``v`` walks; the array's other axes stay at their start.
    """

    shape: tuple[int, ...]
    """Shape of the view."""
    axes: tuple[int | None, ...]
    """For each axis of the view the array's axis it walks; None repeats one element (broadcasting)."""
    starts: tuple[int, ...]
    """For each axis of the array the index of the view's first element."""
    steps: tuple[int, ...]
    """For each axis of the array the step between the view's elements, negative for backwards."""

    @classmethod
    def of(cls, shape: tuple[int, ...]) -> Viewing:
        """Return the view that shows an array of ``shape`` as it is."""
        n = len(shape)
        return cls(shape, tuple(range(n)), (0,) * n, (1,) * n)

    def transpose(self, axes: Sequence[int] | None) -> Viewing:
        """Permute the axes; None reverses them."""
        n = len(self.shape)
        order = range(n - 1, -1, -1) if axes is None else _whole_numbers("transpose", axes)
        if sorted(axis + n if axis < 0 else axis for axis in order) != list(range(n)):
            raise ShapeError(f"[transpose] axes {tuple(order)} of shape {self.shape}: name each axis once")
        return self._derived([self.shape[a] for a in order], [self.axes[a] for a in order])

    def broadcast_to(self, shape: Sequence[int]) -> Viewing:
        """Repeat axes of length one, and add leading ones, as NumPy does."""
        target = _whole_numbers("broadcast_to", shape)
        added = len(target) - len(self.shape)
        pairs = list(zip(self.shape, target[max(added, 0) :], strict=added >= 0))
        if added < 0 or any(have not in (1, want) for have, want in pairs):
            raise ShapeError(
                f"[broadcast_to] shape {self.shape} to {target}: axes must be equal or 1 from the right"
            )
        kept = [axis if have == want else None for axis, (have, want) in zip(self.axes, pairs, strict=True)]
        return self._derived(target, [None] * added + kept)

    def index(self, key: Key | tuple[Key, ...]) -> Viewing:
        """Take integers, slices, ``...`` and None, as basic NumPy indexing does.

        Raises IndexError for an integer out of range and TypeError for any other key.
        """
        keys = _expanded_key(key if isinstance(key, tuple) else (key,), self.shape)
        starts, steps = list(self.starts), list(self.steps)
        shape: list[int] = []
        axes: list[int | None] = []
        remaining = iter(zip(self.axes, self.shape, strict=True))
        for item in keys:
            if item is None:
                shape.append(1)
                axes.append(None)
                continue
            axis, size = next(remaining)
            start, step, count = _progression(item, size)
            if axis is not None:
                starts[axis] += steps[axis] * start
                steps[axis] *= step
            if isinstance(item, slice):
                shape.append(count)
                axes.append(axis)
        return Viewing(check_shape("view", tuple(shape)), tuple(axes), tuple(starts), tuple(steps))

    def _derived(self, shape: Sequence[int], axes: Sequence[int | None]) -> Viewing:
        return Viewing(check_shape("view", tuple(shape)), tuple(axes), self.starts, self.steps)

    @property
    def repeats(self) -> bool:
        """Whether some element shows up more than once."""
        return any(axis is None and size > 1 for axis, size in zip(self.axes, self.shape, strict=True))

    def source_region(self, region: Region) -> Region:
        """Return the array's region that holds the view's ``region``, which must not be empty."""
        source = [slice(start, start + 1, 1) for start in self.starts]
        for axis, part, count in zip(self.axes, region, region_shape(region), strict=True):
            if axis is None:
                continue
            step = self.steps[axis] * (part.step or 1)
            first = self.starts[axis] + self.steps[axis] * part.start
            low = min(first, first + step * (count - 1))
            source[axis] = slice(low, low + abs(step) * (count - 1) + 1, abs(step))
        return tuple(source)

    def source_order(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return a view of ``array`` (shaped as a region of the view) as ``source_region`` is laid out.

        Repeated axes are taken once.
        """
        once: Any = (*(0 if axis is None else self._forward(axis) for axis in self.axes), ...)
        walked = [axis for axis in self.axes if axis is not None]
        ordered = array[once].transpose(np.argsort(walked))
        placed: Any = (*(slice(None) if axis in walked else None for axis in range(len(self.starts))), ...)
        source: np.ndarray[Any, Any] = ordered[placed]
        return source

    def _forward(self, axis: int) -> slice:
        return slice(None, None, -1 if self.steps[axis] < 0 else 1)

    def apply(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the view of a NumPy array, sharing its memory."""
        walked = [axis for axis in self.axes if axis is not None]
        key: list[Any] = [*self.starts, ...]
        for size, axis in zip(self.shape, self.axes, strict=True):
            if axis is not None:
                key[axis] = _slice_of(self.starts[axis], self.steps[axis], size)
        taken = array[tuple(key)].transpose(np.argsort(np.argsort(walked)))
        axes: Any = (*(None if axis is None else slice(None) for axis in self.axes), ...)
        spread: np.ndarray[Any, Any] = taken[axes]
        return np.broadcast_to(spread, self.shape) if self.repeats else spread


def _slice_of(start: int, step: int, count: int) -> slice:
    stop = start + step * count
    return slice(0, 0) if count == 0 else slice(start, stop if stop >= 0 else None, step)


def _progression(item: int | slice, size: int) -> tuple[int, int, int]:
    """Return first index, step and count of an index along an axis of ``size``."""
    if isinstance(item, slice):
        indices = range(*item.indices(size))
        return (indices.start if indices else 0), indices.step, len(indices)
    if not -size <= item < size:
        raise IndexingError(
            f"[view] index {item} of an axis of length {size}: it runs from {-size} to {size - 1}"
        )
    return item % size, 1, 1


def _expanded_key(key: tuple[Any, ...], shape: tuple[int, ...]) -> list[int | slice | None]:
    """Return the key with integers made plain and ``...`` (or missing axes) written as full slices."""
    used = sum(item is not None and item is not Ellipsis for item in key)
    gaps = sum(item is Ellipsis for item in key)
    if gaps > 1 or used > len(shape):
        raise IndexingError(f"[view] key {key} for shape {shape}: too many indices, or more than one '...'")
    fill = [slice(None)] * (len(shape) - used)
    spelled: list[int | slice | None] = []
    for item in key if gaps else (*key, Ellipsis):
        if item is Ellipsis:
            spelled.extend(fill)
        elif item is None or isinstance(item, slice):
            spelled.append(item)
        else:
            spelled.append(_whole_number(item))
    return spelled


def _whole_numbers(op: str, given: Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(operator.index(each) for each in given)
    except TypeError as error:
        raise ShapeError(f"[{op}] {given!r}: {error}; give whole numbers, one per axis") from error


def _whole_number(item: Any) -> int:
    try:
        if isinstance(item, (bool, np.bool_)):
            raise ArgumentError("a truth value")
        return operator.index(item)
    except TypeError as error:
        raise IndexingError(
            f"[view] key {item!r:.80}: integers, slices, '...' and None select elements; for a mask use "
            "np.where(mask, x, 0), for a list of rows accelera.concatenate([x[i : i + 1] for i in rows])"
        ) from error
