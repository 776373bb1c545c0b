"""Regions of a result: one slice per axis, cut into smaller ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

Region = tuple[slice, ...]


def whole(shape: Sequence[int]) -> Region:
    """Return the region of everything."""
    return tuple(slice(0, size) for size in shape)


def split(region: Region, axes: Sequence[int], most: int) -> Iterator[Region]:
    """Yield regions of at most ``most`` elements, or as few as cutting ``axes``, in this order, can give.

    >>> [[(part.start, part.stop) for part in piece] for piece in split(whole((3, 4)), (0, 1), 8)]
    [[(0, 2), (0, 4)], [(2, 3), (0, 4)]]
    """
    count = math.prod(part.stop - part.start for part in region)
    axis = next((axis for axis in axes if region[axis].stop - region[axis].start > 1), None)
    if count <= most or axis is None:
        yield region
        return
    start, stop = region[axis].start, region[axis].stop
    step = max(1, most * (stop - start) // count)
    for low in range(start, stop, step):
        yield from split(replaced(region, axis, slice(low, min(low + step, stop))), axes, most)


def halved(region: Region, axes: Sequence[int]) -> tuple[Region, Region] | None:
    """Return both halves along the first of ``axes`` that can be cut; None when none can."""
    axis = next((axis for axis in axes if region[axis].stop - region[axis].start > 1), None)
    if axis is None:
        return None
    start, stop = region[axis].start, region[axis].stop
    middle = (start + stop) // 2
    return replaced(region, axis, slice(start, middle)), replaced(region, axis, slice(middle, stop))


def replaced(region: Region, axis: int, part: slice) -> Region:
    """Return ``region`` with another slice of one axis."""
    return (*region[:axis], part, *region[axis + 1 :])
