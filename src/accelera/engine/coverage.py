"""Coverage of a result: the boxes of it that are stored."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from accelera.plan import Spans

_Face = tuple[int, bool, int, Spans]
"""Axis, whether it is the upper side, where along the axis, and the spans along the others."""


def as_box(region: Iterable[slice]) -> Spans:
    """Return the bounds of a region of slices with step 1."""
    return tuple((part.start, part.stop) for part in region)


class Coverage:
    """A set of boxes that grows; boxes that share a whole face become one, so that there stay few.

    >>> done = Coverage([((0, 2), (0, 4))])
    >>> done.covers(((0, 2), (1, 3))), done.covers(((1, 3), (0, 4)))
    (True, False)
    >>> done.add(((2, 5), (0, 4)))
    >>> list(done)
    [((0, 5), (0, 4))]
    """

    def __init__(self, boxes: Iterable[Spans] = ()) -> None:
        self._boxes: dict[Spans, None] = {}
        self._faces: dict[_Face, Spans] = {}
        self._edges: np.ndarray[Any, Any] | None = None
        for box in boxes:
            self.add(box)

    def add(self, box: Spans) -> None:
        """Take note that ``box`` is stored."""
        if box in self._boxes:
            return
        self._edges = None
        while (neighbour := self._neighbour(box)) is not None:
            self._remove(neighbour)
            box = tuple((min(a, c), max(b, d)) for (a, b), (c, d) in zip(box, neighbour, strict=True))
        self._boxes[box] = None
        self._faces.update((face, box) for face in _faces(box))

    def _neighbour(self, box: Spans) -> Spans | None:
        """Return a box that continues ``box`` along one axis."""
        found = (self._faces.get((axis, not side, edge, rest)) for axis, side, edge, rest in _faces(box))
        return next((each for each in found if each is not None), None)

    def _remove(self, box: Spans) -> None:
        del self._boxes[box]
        for face in _faces(box):
            if self._faces.get(face) == box:
                del self._faces[face]

    def __iter__(self) -> Iterator[Spans]:
        return iter(self._boxes)

    def __len__(self) -> int:
        return len(self._boxes)

    @property
    def elements(self) -> int:
        """Elements of all boxes; those in two boxes count twice."""
        return sum(math.prod(stop - start for start, stop in box) for box in self._boxes)

    def covers(self, box: Spans) -> bool:
        """Return whether every element of ``box`` is stored."""
        if box in self._boxes or any(start >= stop for start, stop in box):
            return True
        left = [box]
        for done in self._near(box):
            left = [piece for each in left for piece in _minus(each, done)]
            if not left:
                return True
        return False

    def _near(self, box: Spans) -> list[Spans]:
        """Return the boxes that overlap ``box``."""
        boxes = list(self._boxes)
        if self._edges is None:
            self._edges = np.array(boxes, dtype=np.int64).reshape(len(boxes), len(box), 2)
        bounds = np.array(box, dtype=np.int64).reshape(len(box), 2)
        overlap = (self._edges[..., 0] < bounds[:, 1]) & (self._edges[..., 1] > bounds[:, 0])
        return [boxes[index] for index in np.flatnonzero(overlap.all(axis=1))]


def _faces(box: Spans) -> Iterator[_Face]:
    """Yield the two faces of a box along each axis."""
    for axis, (start, stop) in enumerate(box):
        rest = (*box[:axis], *box[axis + 1 :])
        yield axis, False, start, rest
        yield axis, True, stop, rest


def _minus(box: Spans, hole: Spans) -> list[Spans]:
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
