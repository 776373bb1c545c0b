"""Where the result of a tiled operation goes: into the pool when it is bigger than a block."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from accelera.offload.keeping.keeper import Keeper
from accelera.offload.keeping.rows import row_parts
from accelera.offload.tensors.contents import Contents
from accelera.offload.tensors.tensor import OffloadedTensor


def empty(keeper: Keeper, sizes: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a new contiguous tensor, in the pool if it is bigger than a block."""
    if dtype.itemsize * math.prod(sizes) <= keeper.block_bytes:
        return torch.empty(sizes, dtype=dtype, device=keeper.device)
    return offloaded(keeper, sizes, dtype)


def offloaded(
    keeper: Keeper,
    sizes: Sequence[int],
    dtype: torch.dtype,
    *,
    name: str = "",
    role: str = "workspace",
    cut: bool = True,
) -> OffloadedTensor:
    """Return a new contiguous tensor in the pool, without contents; ``cut``: in blocks of ``block_bytes``."""
    row_bytes = dtype.itemsize * math.prod(sizes[1:])
    parts = (
        row_parts(sizes, dtype.itemsize, keeper.block_bytes) if cut else [slice(0, sizes[0] if sizes else 1)]
    )
    blocks = [keeper.create((part.stop - part.start) * row_bytes, name, role) for part in parts]
    strides = torch.empty(sizes, device="meta").stride()
    return OffloadedTensor(Contents(keeper, blocks, sizes, dtype), sizes, strides)
