"""Regions: one slice per axis with ``0 <= start <= stop <= size`` and a positive step."""

from __future__ import annotations

from typing import Any

import numpy as np

from accelera.errors import DTypeError, ShapeError

Region = tuple[slice, ...]


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
