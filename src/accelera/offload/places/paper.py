"""Memory on paper: slabs that have a size and no bytes, homes that move nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from accelera.offload.homes import Bytes, Home


@final
class PaperHome:
    """Where a block would live."""

    writable = True

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def read(self, start: int, out: Bytes) -> int:
        """Return how many bytes would be read."""
        return out.nbytes

    def write(self, start: int, data: Bytes) -> int:
        """Return how many bytes would be written."""
        return data.nbytes

    def resident(self) -> None:
        """Nothing lies anywhere."""

    def mapped(self) -> Bytes:
        """Return zeros that nothing backs until they are looked at."""
        return np.zeros(self.nbytes, np.uint8)

    def release(self) -> None:
        """Nothing is held."""


@final
class PaperHomes:
    """Makes homes on paper."""

    def create(self, nbytes: int) -> PaperHome:
        """Return the home of a block of ``nbytes``."""
        return PaperHome(nbytes)

    def close(self) -> None:
        """Nothing is held."""


@final
class PaperPlace:
    """A place whose slabs are tensors of ``mode``: operations on them follow shapes.

    ``on_slab`` hears of every new one.
    """

    def __init__(
        self, device: torch.device, mode: FakeTensorMode, on_slab: Callable[[torch.Tensor], None]
    ) -> None:
        self.device = device
        self.arena = None
        self._mode = mode
        self._on_slab = on_slab

    def allocate(self, nbytes: int) -> tuple[torch.Tensor, Any]:
        """Return a slab without bytes."""
        with _disable_current_modes():
            shape = torch.empty(nbytes, dtype=torch.uint8, device="meta")
            tensor = FakeTensor(self._mode, shape, self.device)
        self._on_slab(tensor)
        return tensor, tensor

    def promise(self, nbytes: int) -> None:
        """Nothing is held."""

    def release(self, memory: Any) -> None:
        """Nothing is held."""

    def load(self, home: Home, memory: Any, start: int, stop: int) -> int:
        """Return the bytes that would be read."""
        return stop - start

    def save(self, memory: Any, home: Home, start: int, stop: int) -> int:
        """Return the bytes that would be written."""
        return stop - start

    def lend(self, memory: Any) -> None:
        """Nothing is on its way."""

    def used(self, memory: Any) -> None:
        """Nothing uses it."""
