"""Pins what one box of an operation uses, and shows it as ordinary tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch

from accelera.memory import Block, Use
from accelera.offload.keeping.keeper import Keeper
from accelera.offload.tensors.tensor import OffloadedTensor
from accelera.offload.tiled.layout import Box
from accelera.offload.tiled.operand import is_offloaded, layout_of
from accelera.offload.tiled.space import Operand


@contextmanager
def held(keeper: Keeper, operands: Sequence[Operand], box: Box, op: str) -> Iterator[list[torch.Tensor]]:
    """Give each operand's part for ``box`` of the space as an ordinary tensor, for the time of one step."""
    with held_parts(keeper, [(operand, operand.box(box)) for operand in operands], op) as parts:
        yield parts


@contextmanager
def held_parts(
    keeper: Keeper, wanted: Sequence[tuple[Operand, Box]], op: str
) -> Iterator[list[torch.Tensor]]:
    """Give a part of each operand, each within one block, as an ordinary tensor, for the time of one step.

    Operands may be with other keepers than ``keeper``.
    """
    uses: dict[Keeper, dict[Block, Use]] = {keeper: {}}
    for operand, part in wanted:
        if is_offloaded(operand.tensor):
            _note(uses.setdefault(operand.tensor.keeper, {}), operand, operand.tensor, part)
    memory: dict[Block, torch.Tensor] = {}
    with ExitStack() as stack:
        for owner, own in uses.items():
            memory.update(zip(own, stack.enter_context(owner.use(list(own.values()), op)), strict=True))
        yield [_shown(operand.tensor, part, memory) for operand, part in wanted]


def _note(uses: dict[Block, Use], operand: Operand, tensor: OffloadedTensor, part: Box) -> None:
    view = layout_of(tensor).part(part)
    block = tensor.blocks[view.block]
    anew = (
        operand.write and not operand.read and math.prod(view.sizes) * tensor.element_size() == block.nbytes
    )
    read, write = not anew, operand.write
    if block in uses:
        read, write = uses[block].read or read, uses[block].write or write
    uses[block] = Use(block, read, write)


def _shown(tensor: torch.Tensor, part: Box, memory: dict[Block, torch.Tensor]) -> torch.Tensor:
    if not is_offloaded(tensor):
        return tensor[part]
    layout = layout_of(tensor)
    view = layout.part(part)
    flat = memory[tensor.blocks[view.block]].view(tensor.dtype)
    return flat.as_strided(view.sizes, view.strides, view.offset - layout.starts[view.block])
