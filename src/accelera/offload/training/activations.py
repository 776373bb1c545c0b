"""What a forward pass saves for its backward pass goes to the pool instead of staying in memory."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, final

import torch
from torch.autograd.graph import saved_tensors_hooks

from accelera.offload.keeping.keeper import Keeper
from accelera.offload.keeping.plain import is_plain
from accelera.offload.training.saved_values import SavedValues, distinct, save_values

Key = tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Ordinary:
    """A saved tensor that stays where it is, and the version that it had."""

    tensor: torch.Tensor
    version: int

    def checked(self) -> torch.Tensor:
        """Return the tensor; raises RuntimeError, as autograd does, when it was changed in place since."""
        if self.tensor._version != self.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace "
                f"operation: [{self.tensor.type()} {list(self.tensor.shape)}] is at version "
                f"{self.tensor._version}; expected version {self.version} instead. Hint: enable anomaly "
                "detection to find the operation that failed to compute its gradient, with "
                "torch.autograd.set_detect_anomaly(True)."
            )
        return self.tensor


@final
class Activations:
    """Packs saved tensors of at least ``least_bytes`` into the pool, the same values once; never weights.

    Their blocks end when the last node that saved them lets go.
    """

    def __init__(self, keeper: Keeper, least_bytes: int | None = None) -> None:
        self._keeper = keeper
        self._least_bytes = keeper.least_bytes if least_bytes is None else least_bytes
        self._known: weakref.WeakValueDictionary[Key, SavedValues] = weakref.WeakValueDictionary()

    def saving(self) -> saved_tensors_hooks:
        """Return the context in which what autograd saves comes here."""
        return saved_tensors_hooks(self._pack, _unpack)

    def _pack(self, tensor: torch.Tensor) -> SavedValues | Ordinary:
        if not self._goes(tensor):
            alone = tensor if tensor.grad_fn is None else tensor.detach()
            return Ordinary(alone, tensor._version)
        key = _key(tensor)
        saved = self._known.get(key)
        if saved is None:
            saved = self._known[key] = save_values(tensor, self._keeper)
        return saved

    def _goes(self, tensor: torch.Tensor) -> bool:
        return (
            is_plain(tensor)
            and tensor.device == self._keeper.device
            and distinct(tensor).numel() * tensor.element_size() >= self._least_bytes
        )


def _unpack(packed: SavedValues | Ordinary) -> torch.Tensor:
    return packed.tensor() if isinstance(packed, SavedValues) else packed.checked()


def _key(tensor: torch.Tensor) -> Key:
    """Name the values: one view of one storage at one version."""
    place = (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor._version)
    return (*place, tuple(tensor.shape), tensor.stride(), tensor.dtype)
