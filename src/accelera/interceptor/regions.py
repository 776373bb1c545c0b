"""Regions of a result: one slice per axis, cut into smaller ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from accelera.chunking import Region as Region

SHARE = 32768
"""Elements below which torch leaves a vector to one thread, and a multiple of which each share has."""
_VECTOR = 64
"""Elements that vector instructions take at a time, or a multiple of them."""


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
    step -= step % _VECTOR if step > _VECTOR else 0
    for low in range(start, stop, step):
        yield from split(replaced(region, axis, slice(low, min(low + step, stop))), axes, most)


def flat_pieces(count: int, most: int, threads: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of pieces of a vector of about ``most`` elements.

    Torch computes the last elements of each thread's share without vector instructions, which for some
    functions differs in the last bit. Pieces end such that it happens to the same elements as in one piece.
    """
    workers = max(1, min(threads, -(-count // SHARE)))
    share, even = -(-count // workers), SHARE * threads
    large = most // even * even
    small = min(SHARE, max(_VECTOR, most // _VECTOR * _VECTOR))
    for start in range(0, count, share):
        end = min(start + share, count)
        while start < end:
            step = large if large and end - start >= large else small
            yield start, min(start + step, end)
            start = min(start + step, end)


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
