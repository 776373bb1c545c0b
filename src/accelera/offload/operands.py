"""Offloaded operands of one operator, whole or in boxes, pinned and shown as ordinary tensors meanwhile."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from accelera.memory._internal import PoolBlock, Use
from accelera.offload.block_layout import BlockLayout, Box, whole_box
from accelera.offload.tensor import OffloadedTensor, is_offloaded, layout_of

if TYPE_CHECKING:
    from accelera.offload.block_cache import BlockCache

_Uses = dict["BlockCache", dict[PoolBlock, Use]]
"""Uses of blocks by their cache; the first cache is to have room for the output."""


def place_of(tensor: OffloadedTensor, part: BlockLayout | None = None) -> tuple[PoolBlock, int]:
    """Return the block in which ``tensor``, or a part of it, lies, and its offset in it in elements.

    It must lie in one block.
    """
    blocks = tensor.block_storage.blocks
    if part is None:
        if len(blocks) == 1:
            return blocks[0], int(tensor.storage_offset())
        part = layout_of(tensor)
    return blocks[part.block], part.offset - part.starts[part.block]


def show(
    tensor: OffloadedTensor, flat: torch.Tensor, offset: int, part: BlockLayout | None = None
) -> torch.Tensor:
    """Return the ordinary tensor that ``tensor``, or a part of it, is while its block is in ``flat``.

    ``offset`` is its offset in the block in elements.
    """
    typed = flat.view(tensor.dtype)
    sizes, strides = (tensor.shape, tensor.stride()) if part is None else (part.sizes, part.strides)
    shown = typed.as_strided(sizes, strides, typed.storage_offset() + offset)
    if tensor.is_conj():
        torch._C._set_conj(shown, True)
    if tensor.is_neg():
        torch._C._set_neg(shown, True)
    return shown


def _add_use(uses: _Uses, cache: BlockCache, block: PoolBlock, *, read: bool, write: bool) -> None:
    """Enter a use; uses of one block are one."""
    own = uses.setdefault(cache, {})
    known = own.get(block)
    own[block] = (
        Use(block, read, write) if known is None else Use(block, read or known.read, write or known.write)
    )


def _enter(
    uses: _Uses, op: str, output_bytes: int = 0
) -> tuple[AbstractContextManager[Any], dict[PoolBlock, torch.Tensor]]:
    """Enter the pools of the caches; return what leaves them, and the bytes of each block.

    Several are entered in the same order in every thread.
    """
    first = next(iter(uses))
    if len(uses) == 1:
        context: AbstractContextManager[Any] = first.use(list(uses[first].values()), op, output_bytes)
        return context, dict(zip(uses[first], context.__enter__(), strict=True))
    flats: dict[PoolBlock, torch.Tensor] = {}
    with ExitStack() as stack:
        for cache in sorted(uses, key=id):
            own = uses[cache]
            room = output_bytes if cache is first else 0
            given = stack.enter_context(cache.use(list(own.values()), op, room))
            flats.update(zip(own, given, strict=True))
        return stack.pop_all(), flats


class PinnedOperands:
    """A context in which the bytes of an operation's offloaded operands are there.

    Each lies in one block. Those in ``changed`` (by identity) are written; ``overwrites``: with no regard to
    what they held. Room for ``output_bytes`` is to be beside them.
    """

    __slots__ = ("_context", "_op", "_output_bytes", "_shown", "_storages", "_tensors", "_uses")

    def __init__(
        self,
        op: str,
        tensors: Iterable[OffloadedTensor],
        changed: Iterable[int] = (),
        *,
        overwrites: bool = False,
        output_bytes: int = 0,
    ) -> None:
        self._op = op
        self._output_bytes = output_bytes
        self._tensors: dict[int, tuple[OffloadedTensor, PoolBlock, int]] = {}
        self._uses: _Uses = {}
        for tensor in tensors:
            block, offset = place_of(tensor)
            write = id(tensor) in changed
            overwritten = write and overwrites and _covers_block(tensor.shape, tensor, block)
            self._tensors[id(tensor)] = (tensor, block, offset)
            _add_use(self._uses, tensor.block_storage.cache, block, read=not overwritten, write=write)

    def __enter__(self) -> PinnedOperands:
        self._context, flats = _enter(self._uses, self._op, self._output_bytes)
        self._shown = {
            key: show(tensor, flats[block], offset) for key, (tensor, block, offset) in self._tensors.items()
        }
        self._storages = {flat.untyped_storage()._cdata for flat in flats.values()}
        return self

    def __exit__(self, *error: Any) -> None:
        self._shown = {}
        self._context.__exit__(*error)

    def bring(self, value: Any) -> Any:
        """Return an argument with ordinary tensors for the operands; what is ordinary is given as it is."""
        if isinstance(value, torch.Tensor):
            return self._shown.get(id(value), value)
        if isinstance(value, (list, tuple)):
            return [self.bring(one) for one in value]
        return value

    def kept(self, result: Any) -> Any:
        """Return a result as it may outlive the blocks: copied if it lies in one of them."""
        if isinstance(result, torch.Tensor):
            return result.clone() if self._aliases_block(result) else result
        if isinstance(result, (list, tuple)):
            return type(result)(self.kept(one) for one in result)
        return result

    def _aliases_block(self, tensor: torch.Tensor) -> bool:
        return tensor.layout is torch.strided and tensor.untyped_storage()._cdata in self._storages


def _covers_block(sizes: Sequence[int], tensor: OffloadedTensor, block: PoolBlock) -> bool:
    """Return whether a part of ``tensor`` of these sizes, which lies in ``block``, is all of it."""
    return math.prod(sizes) * tensor.element_size() == block.nbytes


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

    Operands may be in other caches than ``cache``.
    """
    uses: _Uses = {cache: {}}
    for operand, box in wanted:
        if is_offloaded(operand.tensor):
            part = layout_of(operand.tensor).part(box)
            block, _ = place_of(operand.tensor, part)
            overwritten = (
                operand.write and not operand.read and _covers_block(part.sizes, operand.tensor, block)
            )
            _add_use(uses, operand.tensor.cache, block, read=not overwritten, write=operand.write)
    with ExitStack() as stack:
        context, flats = _enter(uses, op)
        stack.push(context)
        yield [_ordinary_part(operand.tensor, box, flats) for operand, box in wanted]


def _ordinary_part(tensor: torch.Tensor, box: Box, flats: dict[PoolBlock, torch.Tensor]) -> torch.Tensor:
    if not is_offloaded(tensor):
        return tensor[box]
    part = layout_of(tensor).part(box)
    block, offset = place_of(tensor, part)
    return show(tensor, flats[block], offset, part)
