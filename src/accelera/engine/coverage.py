"""Which part of a result is already stored, as boxes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

Box = tuple[tuple[int, int], ...]
"""(start, stop) along each axis."""


def as_box(region: Iterable[slice]) -> Box:
    """Return the bounds of a region of slices with step 1."""
    return tuple((part.start, part.stop) for part in region)


class Coverage:
    """A set of boxes that grows.

    >>> done = Coverage([((0, 2), (0, 4))])
    >>> done.covers(((0, 2), (1, 3))), done.covers(((1, 3), (0, 4)))
    (True, False)
    """

    def __init__(self, boxes: Iterable[Box] = ()) -> None:
        self._boxes: list[Box] = []
        self._known: set[Box] = set()
        self._edges: np.ndarray[Any, Any] | None = None
        for box in boxes:
            self.add(box)

    def add(self, box: Box) -> None:
        """Take note that ``box`` is stored."""
        if box not in self._known:
            self._known.add(box)
            self._boxes.append(box)
            self._edges = None

    def __iter__(self) -> Iterator[Box]:
        return iter(self._boxes)

    def __len__(self) -> int:
        return len(self._boxes)

    def covers(self, box: Box) -> bool:
        """Return whether every element of ``box`` is stored."""
        if box in self._known:
            return True
        left = [box]
        for done in self._near(box):
            left = [piece for each in left for piece in _minus(each, done)]
            if not left:
                return True
        return False

    def _near(self, box: Box) -> list[Box]:
        """Return the boxes that overlap ``box``."""
        if self._edges is None:
            self._edges = np.array(self._boxes, dtype=np.int64).reshape(len(self._boxes), len(box), 2)
        bounds = np.array(box, dtype=np.int64).reshape(len(box), 2)
        overlap = (self._edges[..., 0] < bounds[:, 1]) & (self._edges[..., 1] > bounds[:, 0])
        return [self._boxes[index] for index in np.flatnonzero(overlap.all(axis=1))]


def _minus(box: Box, hole: Box) -> list[Box]:
    """Return what is left of ``box`` outside ``hole``, as disjoint boxes."""
    overlap = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, hole, strict=True)]
    if any(start >= stop for start, stop in overlap):
        return [box]
    pieces = []
    rest = list(box)
    for axis, (start, stop) in enumerate(overlap):
        low, high = rest[axis]
        pieces += [
            (*rest[:axis], part, *rest[axis + 1 :])
            for part in ((low, start), (stop, high))
            if part[0] < part[1]
        ]
        rest[axis] = (start, stop)
    return pieces
