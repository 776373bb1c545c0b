"""Layout of tensors in blocks: block sizes, cuts along rows, and the blocks that a strided view reaches."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from accelera.chunking._internal import Region

BLOCKS = {False: 4, True: 8}
"""Number of the largest blocks that fit the pool: a product uses three, an optimizer's step up to five."""

FINER = (1, 2, 4)
"""Factors by which blocks are made smaller while a plan does not work out."""


def block_bytes_of(capacity_bytes: int, *, train: bool, finer: int = 1) -> int:
    """Return the most bytes of one block in a pool of ``capacity_bytes``."""
    return max(1, capacity_bytes // (BLOCKS[train] * finer))


def row_parts(shape: Sequence[int], itemsize: int, block_bytes: int) -> list[slice]:
    """Return slices of the first axis, each of at most ``block_bytes`` or of one row.

    >>> row_parts((10, 8), 4, 128)
    [slice(0, 4, None), slice(4, 8, None), slice(8, 10, None)]
    """
    rows = shape[0] if len(shape) else 1
    row_bytes = max(1, math.prod(shape[1:]) * itemsize)
    step = max(1, min(rows, block_bytes // row_bytes))
    return [slice(start, min(start + step, rows)) for start in range(0, max(rows, 1), step)]


def part_name(name: str, part: slice, parts: int) -> str:
    """Return the name of the block that holds ``part`` of a tensor cut into ``parts``."""
    return name if parts == 1 else f"{name}[{part.start}:{part.stop}]"


Box = Region
"""A part of a view: one slice with a start and a stop per axis."""


@dataclass(frozen=True)
class BlockLayout:
    """A strided view of consecutive elements that are cut into blocks; strides are not negative."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    """First element of the view, counted from the first element of the first block."""
    starts: tuple[int, ...]
    """First element of each block."""

    @property
    def block(self) -> int:
        """Index of the block that holds the first element."""
        return bisect_right(self.starts, self.offset) - 1

    @property
    def last(self) -> int:
        """The farthest element that the view reaches."""
        steps = zip(self.sizes, self.strides, strict=True)
        return self.offset + sum((size - 1) * stride for size, stride in steps)

    @property
    def single(self) -> bool:
        """Whether the view lies in one block."""
        return 0 in self.sizes or bisect_right(self.starts, self.last) - 1 == self.block

    def part(self, box: Box) -> BlockLayout:
        """Return the view of a box of this view."""
        moved = sum(edge.start * stride for edge, stride in zip(box, self.strides, strict=True))
        sizes = tuple(edge.stop - edge.start for edge in box)
        return replace(self, sizes=sizes, offset=self.offset + moved)

    def boxes(self) -> Iterator[Box]:
        """Cut the view into boxes that lie in one block each, along its slowest axis as far as possible."""
        yield from _cut(self, whole_box(self.sizes))


def whole_box(sizes: Sequence[int]) -> Box:
    """Return the box that is everything.

    >>> whole_box((2, 3))
    (slice(0, 2, None), slice(0, 3, None))
    """
    return tuple(slice(0, size) for size in sizes)


def _cut(view: BlockLayout, box: Box) -> Iterator[Box]:
    while not (here := view.part(box)).single:
        axis = max((axis for axis, size in enumerate(here.sizes) if size > 1), key=here.strides.__getitem__)
        first, rest = (_narrowed(box, axis, *half) for half in _halves(here, axis))
        yield from _cut(view, first)
        box = rest
    yield box


def _narrowed(box: Box, axis: int, start: int, stop: int) -> Box:
    edge = slice(box[axis].start + start, box[axis].start + stop)
    return (*box[:axis], edge, *box[axis + 1 :])


def _halves(view: BlockLayout, axis: int) -> Iterator[tuple[int, int]]:
    """Cut ``axis`` where the view leaves its first block, or past the one index that straddles the border."""
    border = view.starts[view.block + 1]
    stride, size = view.strides[axis], view.sizes[axis]
    reach = view.last - (size - 1) * stride
    inside = max(0, min(size - 1, (border - 1 - reach) // stride + 1))
    cut = inside or 1
    yield 0, cut
    yield cut, size
