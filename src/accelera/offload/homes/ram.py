"""Host memory beside an accelerator: one slab of exactly the bytes of its block, pinned where that helps."""

from __future__ import annotations

from typing import final

import numpy as np

from accelera.devices import CpuDevice
from accelera.offload.homes.contract import Bytes


@final
class RamHome:
    """A slab of pages of its own."""

    writable = True

    def __init__(self, device: CpuDevice, nbytes: int) -> None:
        self.nbytes = nbytes
        self.slab: Bytes = device.allocate(nbytes)
        self._device = device

    def read(self, start: int, out: Bytes) -> int:
        """Copy into ``out`` the bytes from ``start`` on."""
        np.copyto(out, self.slab[start : start + out.nbytes])
        return out.nbytes

    def write(self, start: int, data: Bytes) -> int:
        """Copy ``data`` to byte ``start`` and on."""
        np.copyto(self.slab[start : start + data.nbytes], data)
        return data.nbytes

    def mapped(self) -> Bytes:
        """Return the slab itself."""
        return self.slab

    def release(self) -> None:
        """Return the slab to the system."""
        self._device.release(self.slab)


@final
class RamHomes:
    """Slabs of host memory."""

    def __init__(self) -> None:
        self._device = CpuDevice()

    def create(self, nbytes: int) -> RamHome:
        """Return a slab of exactly ``nbytes``; raises DeviceMemoryError when RAM is short."""
        return RamHome(self._device, nbytes)

    def close(self) -> None:
        """Slabs go with their homes."""
