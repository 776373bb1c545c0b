"""A saved tensor in the pool: its values once, in their order in memory, and how to show them again."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from accelera.offload.keeping.keeper import Keeper
from accelera.offload.tensors.tensor import OffloadedTensor
from accelera.offload.tiled.results import offloaded


@dataclass(frozen=True, eq=False)
class SavedValues:
    """The values of a tensor that a node saved."""

    values: OffloadedTensor
    """Without repetition, axes by falling stride."""
    order: tuple[int, ...]
    """For each axis of ``values``, the axis of the tensor."""
    sizes: tuple[int, ...]
    storage: StorageWeakRef
    """While this is held, no other storage gets the same address."""

    def tensor(self) -> torch.Tensor:
        """Return an ordinary tensor with the saved values."""
        back = sorted(range(len(self.order)), key=self.order.__getitem__)
        return self.values.materialized().permute(back).expand(self.sizes)


def save_values(tensor: torch.Tensor, keeper: Keeper) -> SavedValues:
    """Copy the values of ``tensor`` into the pool."""
    order = tuple(sorted(range(tensor.ndim), key=tensor.stride().__getitem__, reverse=True))
    plain = distinct(tensor.detach()).permute(order)
    with torch.no_grad():
        kept = offloaded(keeper, plain.shape, plain.dtype, name="saved", role="activation")
        kept.copy_(plain)
    return SavedValues(kept, order, tuple(tensor.shape), StorageWeakRef(tensor.untyped_storage()))  # type: ignore[no-untyped-call]


def distinct(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of an expanded tensor that is in memory: one index along axes of stride zero."""
    for axis, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[axis] > 1:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor
