"""Values of saved tensors in the pool or packed, and how to get them back."""

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


@dataclass(frozen=True, eq=False)
class PooledStorage:
    """The bytes of a storage in the pool."""

    values: OffloadedTensor

    def storage(self) -> torch.UntypedStorage:
        """Return the bytes in memory again."""
        return self.values.materialized().untyped_storage()


@dataclass(frozen=True, eq=False)
class PackedStorage:
    """A storage whose elements are zero or one number, as a mask and that number."""

    mask: torch.Tensor
    number: torch.Tensor

    def storage(self) -> torch.UntypedStorage:
        """Return the elements again."""
        return (self.mask * self.number).untyped_storage()


def save_storage(tensor: torch.Tensor, keeper: Keeper, *, pack: bool) -> PooledStorage | PackedStorage:
    """Put the whole storage under ``tensor`` into the pool, or ``pack`` it where it is."""
    storage = tensor.untyped_storage()
    count = storage.nbytes() // tensor.element_size()
    flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage, 0, (count,), (1,))
    with torch.no_grad():
        if pack:
            return PackedStorage(flat.bool(), flat.max())
        kept = offloaded(keeper, flat.shape, flat.dtype, name="saved", role="activation")
        kept.copy_(flat)
    return PooledStorage(kept)
