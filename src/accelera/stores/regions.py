"""Regions: one slice per axis with ``0 <= start <= stop <= size`` and a positive step; cut and checked."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from accelera.chunking._internal import Region as Region
from accelera.errors import DTypeError, ShapeError

Borders = Sequence[int | Sequence[int]]
"""For each axis the length of all chunks, or the lengths of all of them in order."""

MOST_AXES = 32
"""As many as NumPy's functions that broadcast take, in every version."""
_MOST_BYTES = 2**63 - 1


def check_shape(op: str, shape: tuple[int, ...], itemsize: int = 1) -> tuple[int, ...]:
    """Return ``shape``; raises ShapeError for more axes or bytes than an array can have."""
    if len(shape) > MOST_AXES:
        raise ShapeError(f"[{op}] {len(shape)} axes: an array has at most {MOST_AXES}; join some of them")
    if any(size < 0 for size in shape):
        raise ShapeError(f"[{op}] shape {shape}: no axis can be negative")
    if math.prod(max(size, 1) for size in shape) * itemsize > _MOST_BYTES:
        raise ShapeError(f"[{op}] shape {shape}: over 2**63 bytes, more than any array has")
    return shape


def whole(shape: tuple[int, ...]) -> Region:
    """Return the region that covers an array of ``shape``."""
    return tuple(slice(0, size, 1) for size in shape)


def axis_length(axis: slice) -> int:
    """Return how many indices a region's slice takes.

    >>> axis_length(slice(1, 8, 3))
    3
    """
    return len(range(axis.start, axis.stop, axis.step or 1))


def region_shape(region: Region) -> tuple[int, ...]:
    """Return the shape of the array that a region selects."""
    return tuple(axis_length(axis) for axis in region)


def view_key(region: Region) -> Any:
    """Return the index that makes NumPy give a view of a region, even of an array without axes."""
    return (*region, ...)


def inner_region(region: Region, part: Region) -> Region:
    """Return the region that ``part`` of the array selected by ``region`` comes from.

    >>> inner_region((slice(10, 30, 2),), (slice(1, 3),))
    (slice(12, 15, 2),)
    """
    return tuple(slice(*_inner(axis, inner)) for axis, inner in zip(region, part, strict=True))


def _inner(axis: slice, inner: slice) -> tuple[int, int, int]:
    indices = range(axis.start, axis.stop, axis.step or 1)[inner]
    return (indices[0], indices[-1] + 1, indices.step) if indices else (axis.start, axis.start, 1)


def check_transfer(
    op: str, shape: tuple[int, ...], dtype: np.dtype[Any], region: Region, array: np.ndarray[Any, Any]
) -> None:
    """Raise unless ``region`` lies in ``shape`` and ``array`` has the region's shape and ``dtype``.

    Raises ShapeError or DTypeError, prefixed with ``[op]``.
    """
    if len(region) != len(shape) or not all(map(_inside, region, shape)):
        raise ShapeError(
            f"[{op}] region {region} of an array of shape {shape}: one slice per axis with "
            "0 <= start <= stop <= size and a positive step is needed"
        )
    if array.shape != region_shape(region):
        raise ShapeError(
            f"[{op}] a buffer of shape {array.shape} for a region of shape {region_shape(region)}; "
            "give a buffer of the region's shape"
        )
    if array.dtype != dtype:
        raise DTypeError(
            f"[{op}] a buffer of {array.dtype} for elements of {dtype}; give a buffer of the store's dtype"
        )


def _inside(axis: slice, size: int) -> bool:
    if not isinstance(axis.start, int) or not isinstance(axis.stop, int):
        return False
    step = 1 if axis.step is None else axis.step
    return 0 <= axis.start <= axis.stop <= size and step > 0


def parts(region: Region, borders: Borders) -> Iterator[tuple[Region, Region]]:
    """Cut a region along chunk borders: pairs of the part, and its place in the region's buffer."""
    axes = [list(_cuts(part, sizes)) for part, sizes in zip(region, borders, strict=True)]
    for cuts in itertools.product(*axes):
        yield tuple(cut[0] for cut in cuts), tuple(cut[1] for cut in cuts)


def _cuts(part: slice, sizes: int | Sequence[int]) -> Iterator[tuple[slice, slice]]:
    indices = range(part.start, part.stop, part.step or 1)
    ends = None if isinstance(sizes, int) else iter(itertools.accumulate(sizes))
    done = border = 0
    while done < len(indices):
        if isinstance(sizes, int):
            border = (indices[done] // sizes + 1) * sizes
        while ends is not None and border <= indices[done]:
            border = next(ends)
        here = indices[done:][: -(-(border - indices[done]) // indices.step)]
        yield slice(here[0], here[-1] + 1, indices.step), slice(done, done + len(here))
        done += len(here)


def piece_shape(shape: tuple[int, ...], itemsize: int, most_bytes: int) -> tuple[int, ...]:
    """Return the shape of pieces of at most ``most_bytes``: whole rows, or parts of one.

    >>> piece_shape((100, 1000, 10), 8, 160_000)
    (2, 1000, 10)
    """
    piece = [max(1, size) for size in shape]
    for axis in range(len(piece)):
        rest = math.prod(piece[axis + 1 :]) * itemsize
        piece[axis] = min(piece[axis], max(1, most_bytes // rest))
        if rest <= most_bytes:
            break
    return tuple(piece)
