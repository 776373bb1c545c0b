"""Regions of a result: cut, put where they belong, described by shape and strides."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, final

import torch

from accelera.chunking._internal import Region as Region
from accelera.errors import ShapeError


class ResultLayout(NamedTuple):
    """Shape, strides and element type of a result."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements; the result has no gaps."""
    dtype: torch.dtype


class TileTarget(Protocol):
    """Place that the tiles of a result go to."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    memory: torch.Tensor | None
    """The result itself where it lies in memory."""

    def put(self, region: Region, piece: torch.Tensor) -> None:
        """Store one piece, from any device."""

    def flat(self) -> TileTarget:
        """Return the same place as a vector, in the order in which the elements lie."""


@final
class MemoryTarget:
    """A result in memory: new, or the caller's own."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory: torch.Tensor | None = memory
        self.shape, self.strides, self.dtype = tuple(memory.shape), tuple(memory.stride()), memory.dtype
        self._memory = memory

    def put(self, region: Region, piece: torch.Tensor) -> None:
        """Store one piece, from any device."""
        self._memory[region].copy_(piece)

    def flat(self) -> MemoryTarget:
        """Return the same memory as a vector."""
        return MemoryTarget(self._memory.as_strided((self._memory.numel(),), (1,)))


def nbytes(shape: tuple[int, ...] | torch.Size, dtype: torch.dtype) -> int:
    """Return the bytes of a dense tensor."""
    count = dtype.itemsize
    for size in shape:
        count *= size
    return count


def broadcast(shapes: Iterable[torch.Size | tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape that operands are broadcast to; raises ValueError when they do not fit."""
    given = list(shapes)
    rank = max(map(len, given))
    sizes = []
    for axis in range(-rank, 0):
        lengths = {shape[axis] for shape in given if len(shape) >= -axis} - {1}
        if len(lengths) > 1:
            raise ShapeError(f"[broadcast] shapes {given} do not broadcast")
        sizes.append(lengths.pop() if lengths else 1)
    return tuple(sizes)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a dense tensor whose last axis is the fastest, in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return tuple(reversed(strides))


def overlaps(target: torch.Tensor, operands: list[Any], *, element_for_element: bool = True) -> bool:
    """Return whether writing ``target`` piece by piece could change an operand that is still to be read.

    An operand that is ``target`` itself is read before it is written where ``element_for_element``.
    """
    if any(size > 1 and stride == 0 for size, stride in zip(target.shape, target.stride(), strict=True)):
        return True
    storage = target.untyped_storage().data_ptr()
    return any(
        each.untyped_storage().data_ptr() == storage and not (element_for_element and _is_same(each, target))
        for each in operands
        if isinstance(each, torch.Tensor) and each.device == target.device
    )


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (one.data_ptr(), one.shape, one.stride(), one.dtype) == (
        other.data_ptr(),
        other.shape,
        other.stride(),
        other.dtype,
    )


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
