"""Pins what one box of an operation uses, and shows it as ordinary tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from accelera.memory import Use
from accelera.offload.keeper import Keeper
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
    """Give a part of each operand, each within one block, as an ordinary tensor, for the time of one step."""
    uses: dict[int, Use] = {}
    for operand, part in wanted:
        _note(uses, operand, part)
    with keeper.use(list(uses.values()), op) as flats:
        memory = dict(zip(uses, flats, strict=True))
        yield [_shown(operand.tensor, part, memory) for operand, part in wanted]


def _note(uses: dict[int, Use], operand: Operand, part: Box) -> None:
    tensor = operand.tensor
    if not is_offloaded(tensor):
        return
    view = layout_of(tensor).part(part)
    block = tensor.blocks[view.block]
    anew = (
        operand.write and not operand.read and math.prod(view.sizes) * tensor.element_size() == block.nbytes
    )
    read, write = not anew, operand.write
    if block.id in uses:
        read, write = uses[block.id].read or read, uses[block.id].write or write
    uses[block.id] = Use(block, read, write)


def _shown(tensor: torch.Tensor, part: Box, memory: dict[int, torch.Tensor]) -> torch.Tensor:
    if not is_offloaded(tensor):
        return tensor[part]
    layout = layout_of(tensor)
    view = layout.part(part)
    flat = memory[tensor.blocks[view.block].id].view(tensor.dtype)
    return flat.as_strided(view.sizes, view.strides, view.offset - layout.starts[view.block])
