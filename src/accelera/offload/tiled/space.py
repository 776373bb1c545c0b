"""The index space of one operation, cut so that in each box every operand lies in one block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from accelera.offload.tiled.layout import Box, Layout, whole_box
from accelera.offload.tiled.operand import is_offloaded, layout_of

Axes = tuple[int | None, ...]
"""For each axis of an operand, the axis of the space that it runs along; None where it is broadcast."""


@dataclass(frozen=True)
class Operand:
    """A tensor and how its axes lie in the space."""

    tensor: torch.Tensor
    axes: Axes
    read: bool = True
    write: bool = False

    def box(self, box: Box) -> Box:
        """Return the operand's part for a box of the space."""
        sizes = self.tensor.shape
        pairs = zip(self.axes, sizes, strict=True)
        return tuple(slice(0, size) if axis is None else box[axis] for axis, size in pairs)


def boxes(sizes: Sequence[int], operands: Sequence[Operand]) -> Iterator[Box]:
    """Cut the space; each box reaches into one block of every offloaded operand."""
    layouts = [(one, layout_of(one.tensor)) for one in operands if is_offloaded(one.tensor)]
    yield from _refined(whole_box(sizes), layouts)


def broadcast_axes(sizes: Sequence[int], ndim: int) -> Axes:
    """Return the axes of an operand that is broadcast to ``ndim`` axes.

    >>> broadcast_axes((1, 5), 3)
    (None, 2)
    """
    shift = ndim - len(sizes)
    return tuple(None if size == 1 else axis + shift for axis, size in enumerate(sizes))


def _refined(box: Box, layouts: Sequence[tuple[Operand, Layout]]) -> Iterator[Box]:
    for operand, layout in layouts:
        inner = operand.box(box)
        view = layout.part(inner)
        if view.single:
            continue
        for part in view.boxes():
            yield from _refined(_outer(box, operand.axes, inner, part), layouts)
        return
    yield box


def _outer(box: Box, axes: Axes, inner: Box, part: Box) -> Box:
    edges = list(box)
    for axis, whole, edge in zip(axes, inner, part, strict=True):
        if axis is not None:
            edges[axis] = slice(whole.start + edge.start, whole.start + edge.stop)
    return tuple(edges)
