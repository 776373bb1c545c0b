"""Loading of a checkpoint: large weights stay in its files, small ones become ordinary tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from accelera.memory import PoolBlock
from accelera.offload.block_cache import BlockCache
from accelera.offload.block_layout import row_parts
from accelera.offload.checkpoints.key_mapping import Matched, ModelSlot
from accelera.offload.checkpoints.shards import Stored
from accelera.offload.tensor import BlockStorage, OffloadedTensor


def fill(found: Matched, cache: BlockCache, dtype: torch.dtype | None) -> None:
    """Give every slot its tensor.

    Parameters
    ----------
    dtype
        Floating-point weights of another type are converted, into scratch space of ``cache``; None leaves
        all as they are stored.
    """
    for slot, name, stored in found.pairs:
        _place(slot, _tensor(name, stored, _dtype_for(stored, dtype), cache, slot))


def _dtype_for(stored: Stored, wanted: torch.dtype | None) -> torch.dtype:
    converts = wanted is not None and stored.dtype.is_floating_point and stored.dtype.itemsize > 1
    return wanted if converts and wanted is not None else stored.dtype


def _tensor(
    name: str, stored: Stored, dtype: torch.dtype, cache: BlockCache, slot: ModelSlot
) -> torch.Tensor:
    nbytes = torch.Size(stored.shape).numel() * dtype.itemsize
    if not slot.is_parameter or nbytes < max(1, cache.least_bytes):
        return _ordinary(stored, dtype).to(cache.device)
    blocks = (
        _attached(name, stored, cache) if dtype == stored.dtype else _converted(name, stored, dtype, cache)
    )
    strides = torch.empty(stored.shape, device="meta").stride()
    return OffloadedTensor(BlockStorage(cache, blocks, stored.shape, dtype), stored.shape, strides)


def _ordinary(stored: Stored, dtype: torch.dtype) -> torch.Tensor:
    if not stored.nbytes:
        return torch.empty(stored.shape, dtype=dtype)
    return stored.mapped().to(dtype, copy=True)


def _attached(name: str, stored: Stored, cache: BlockCache) -> list[PoolBlock]:
    """Return blocks whose home is the file itself."""
    row_bytes = stored.nbytes // stored.shape[0] if stored.shape else stored.nbytes
    blocks = []
    for part in row_parts(stored.shape, stored.dtype.itemsize, cache.block_bytes):
        start, nbytes = part.start * row_bytes, (part.stop - part.start) * row_bytes
        blocks.append(cache.attach(stored.home(start, nbytes), nbytes, name))
    return blocks


def _converted(name: str, stored: Stored, dtype: torch.dtype, cache: BlockCache) -> list[PoolBlock]:
    """Return blocks with the elements in another type, a block converted at a time."""
    elements = stored.mapped().reshape(stored.shape or (1,))
    parts = row_parts(stored.shape, dtype.itemsize, cache.block_bytes)
    return [block for part in parts for block in cache.adopt(elements[part].to(dtype), name)]


def _place(slot: ModelSlot, tensor: torch.Tensor) -> None:
    if slot.is_parameter:
        tensor = nn.Parameter(tensor, requires_grad=slot.tensor.requires_grad and tensor.is_floating_point())
    for module, name in slot.places:
        place: dict[str, Any] = module._parameters if slot.is_parameter else module._buffers
        place[name] = tensor
