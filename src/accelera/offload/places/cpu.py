"""RAM as the place of resident blocks: pages of their own, so that nothing is lost to rounding."""

from __future__ import annotations

from typing import final

import torch

from accelera.devices import CpuDevice
from accelera.offload.homes import Home
from accelera.offload.places.contract import Slab


@final
class CpuPlace:
    """Page-aligned host memory."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self._device = CpuDevice()

    def allocate(self, nbytes: int) -> Slab:
        """Return pages of their own; raises DeviceMemoryError when RAM is short."""
        memory = self._device.allocate(nbytes)
        return Slab(nbytes, torch.from_numpy(memory), memory)

    def release(self, slab: Slab) -> None:
        """Return the pages to the system, even while tensors over them live."""
        self._device.release(slab.memory)

    def load(self, home: Home, slab: Slab) -> int:
        """Read ``home`` into ``slab``."""
        return home.read(0, slab.memory)

    def save(self, slab: Slab, home: Home) -> int:
        """Write ``slab`` to ``home``."""
        return home.write(0, slab.memory)
