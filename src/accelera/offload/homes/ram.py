"""Host memory beside an accelerator: one slab of exactly the bytes of its block, pinned where that helps."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from accelera.devices import CpuDevice
from accelera.memory import Bytes


@final
class RamHome:
    """A slab of pages of its own."""

    writable = True

    def __init__(self, device: CpuDevice, nbytes: int, *, pinned: bool) -> None:
        self.nbytes = nbytes
        self.slab: Bytes = device.allocate(nbytes)
        self._device = device
        self._pinned = pinned and nbytes > 0 and _pin(self.slab)

    def read(self, start: int, out: Bytes) -> int:
        """Copy into ``out`` the bytes from ``start`` on."""
        np.copyto(out, self.slab[start : start + out.nbytes])
        return out.nbytes

    def write(self, start: int, data: Bytes) -> int:
        """Copy ``data`` to byte ``start`` and on."""
        np.copyto(self.slab[start : start + data.nbytes], data)
        return data.nbytes

    def resident(self) -> Bytes:
        """Return the slab itself."""
        return self.slab

    def mapped(self) -> Bytes:
        """Return the slab itself."""
        return self.slab

    def release(self) -> None:
        """Return the slab to the system."""
        if self._pinned:
            _unpin(self.slab)
        self._device.release(self.slab)


@final
class RamHomes:
    """Slabs of host memory, of exactly the bytes asked for; ``pinned`` ones for a CUDA device beside them."""

    def __init__(self, *, pinned: bool = False) -> None:
        self._device = CpuDevice()
        self._pinned = pinned

    def create(self, nbytes: int) -> RamHome:
        """Return a slab of exactly ``nbytes``; raises DeviceMemoryError when RAM is short."""
        return RamHome(self._device, nbytes, pinned=self._pinned)

    def close(self) -> None:
        """Slabs go with their homes."""


def _pin(slab: Bytes) -> bool:
    """Make pages stay where they are, so that CUDA copies them at full speed; False when it refuses."""
    return int(_runtime().cudaHostRegister(slab.ctypes.data, slab.nbytes, 0)) == 0


def _unpin(slab: Bytes) -> None:
    _runtime().cudaHostUnregister(slab.ctypes.data)


def _runtime() -> Any:
    import torch

    cuda: Any = torch.cuda
    return cuda.cudart()
