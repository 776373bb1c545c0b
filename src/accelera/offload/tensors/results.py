"""Offloaded tensors that are new: without contents, laid out as an ordinary one would be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from accelera.offload.keeping.rows import row_parts
from accelera.offload.tensors.contents import Contents
from accelera.offload.tensors.tensor import OffloadedTensor

if TYPE_CHECKING:
    from accelera.offload.keeping.keeper import Keeper


def like(keeper: Keeper, told: torch.Tensor, name: str = "", role: str = "workspace") -> OffloadedTensor:
    """Return a new offloaded tensor, without contents, with the sizes, strides and type of ``told``."""
    shape = tuple(told.shape)
    in_order = told.permute(memory_order(told))
    sizes = shape if told.is_contiguous() else tuple(in_order.shape)
    parts = row_parts(sizes, told.element_size(), keeper.block_bytes)
    row_bytes = told.nbytes // sizes[0] if sizes else told.nbytes
    blocks = [keeper.create((part.stop - part.start) * row_bytes, name, role) for part in parts]
    return OffloadedTensor(Contents(keeper, blocks, sizes, told.dtype), shape, told.stride())


def memory_order(tensor: torch.Tensor) -> list[int]:
    """Return the dimensions from the one with the largest stride to the one with the smallest."""
    pairs = zip(tensor.stride(), tensor.shape, range(tensor.dim()), strict=True)
    return [axis for _, _, axis in sorted(pairs, key=lambda pair: (-pair[0], -pair[1] if pair[1] > 1 else 0))]


def dense(tensor: torch.Tensor) -> bool:
    """Whether the elements of ``tensor`` lie side by side, in some order of its dimensions, each once."""
    if tensor.layout is not torch.strided:
        return False
    expected = 1
    for axis in reversed(memory_order(tensor)):
        if tensor.shape[axis] != 1 and tensor.stride(axis) != expected:
            return tensor.numel() == 0
        expected *= tensor.shape[axis]
    return True
