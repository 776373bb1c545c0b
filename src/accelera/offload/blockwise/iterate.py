"""Iteration over the index space of an operator: boxes in which every operand lies in one block."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch

from accelera.memory import PoolBlock, Use
from accelera.offload.block_cache import BlockCache
from accelera.offload.block_layout import BlockLayout, Box, whole_box
from accelera.offload.operands import show
from accelera.offload.tensor import OffloadedTensor, is_offloaded, layout_of

Axes = tuple[int | None, ...]
"""For each axis of an operand, the axis of the space that it runs along; None where it is broadcast."""


@dataclass(frozen=True)
class BlockOperand:
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


def boxes(sizes: Sequence[int], operands: Sequence[BlockOperand]) -> Iterator[Box]:
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


def _refined(box: Box, layouts: Sequence[tuple[BlockOperand, BlockLayout]]) -> Iterator[Box]:
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


@contextmanager
def pin_box(
    cache: BlockCache, operands: Sequence[BlockOperand], box: Box, op: str
) -> Iterator[list[torch.Tensor]]:
    """Give each operand's part for ``box`` of the space as an ordinary tensor, for the time of one step."""
    with pin_parts(cache, [(operand, operand.box(box)) for operand in operands], op) as parts:
        yield parts


@contextmanager
def pin_parts(
    cache: BlockCache, wanted: Sequence[tuple[BlockOperand, Box]], op: str
) -> Iterator[list[torch.Tensor]]:
    """Give a part of each operand, each within one block, as an ordinary tensor, for the time of one step.

    PinnedOperands may be with other caches than ``cache``.
    """
    uses: dict[BlockCache, dict[PoolBlock, Use]] = {cache: {}}
    for operand, part in wanted:
        if is_offloaded(operand.tensor):
            _note(uses.setdefault(operand.tensor.cache, {}), operand, operand.tensor, part)
    memory: dict[PoolBlock, torch.Tensor] = {}
    with ExitStack() as stack:
        for owner, own in uses.items():
            memory.update(zip(own, stack.enter_context(owner.use(list(own.values()), op)), strict=True))
        yield [_shown(operand.tensor, part, memory) for operand, part in wanted]


def _note(uses: dict[PoolBlock, Use], operand: BlockOperand, tensor: OffloadedTensor, part: Box) -> None:
    view = layout_of(tensor).part(part)
    block = tensor.blocks[view.block]
    anew = (
        operand.write and not operand.read and math.prod(view.sizes) * tensor.element_size() == block.nbytes
    )
    read, write = not anew, operand.write
    if block in uses:
        read, write = uses[block].read or read, uses[block].write or write
    uses[block] = Use(block, read, write)


def _shown(tensor: torch.Tensor, part: Box, memory: dict[PoolBlock, torch.Tensor]) -> torch.Tensor:
    if not is_offloaded(tensor):
        return tensor[part]
    layout = layout_of(tensor)
    view = layout.part(part)
    return show(tensor, memory[tensor.blocks[view.block]], view.offset - layout.starts[view.block], view)
