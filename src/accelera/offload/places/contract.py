"""What a place must do: hold blocks in memory that operations compute on, and move them to and from homes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from accelera.offload.homes import Home


@dataclass(eq=False)
class Slab:
    """Memory of a place."""

    nbytes: int
    tensor: torch.Tensor
    """Its bytes, shape (nbytes,), uint8, on the place's device."""
    memory: Any
    """The same as the place knows it."""


class Place(Protocol):
    """The memory that operations compute on."""

    device: torch.device

    def allocate(self, nbytes: int) -> Slab:
        """Return memory with undefined contents; raises DeviceMemoryError when there is none."""

    def release(self, slab: Slab) -> None:
        """Give memory back to the system."""

    def load(self, home: Home, slab: Slab) -> int:
        """Fill ``slab`` from ``home``; return the bytes moved."""

    def save(self, slab: Slab, home: Home) -> int:
        """Store ``slab`` in ``home``; return the bytes moved."""
