"""RAM as the place of resident blocks: pages of their own, so that nothing is lost to rounding."""

from __future__ import annotations

import mmap
from typing import final

import torch

from accelera.devices import CpuDevice
from accelera.offload.homes import Bytes, Home


@final
class CpuPlace:
    """Page-aligned host memory."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self._device = CpuDevice()

    def allocate(self, nbytes: int) -> tuple[torch.Tensor, Bytes]:
        """Return pages of their own, all of them backed; raises DeviceMemoryError when RAM is short."""
        memory = self._device.allocate(nbytes)
        memory[:: mmap.PAGESIZE] = 0
        return torch.from_numpy(memory), memory

    def release(self, memory: Bytes) -> None:
        """Return the pages to the system, even while tensors over them live."""
        self._device.release(memory)

    def load(self, home: Home, memory: Bytes, start: int, stop: int) -> int:
        """Read a part of ``home``."""
        return home.read(start, memory[start:stop])

    def save(self, memory: Bytes, home: Home, start: int, stop: int) -> int:
        """Write a part to ``home``."""
        return home.write(start, memory[start:stop])

    def lend(self, memory: Bytes) -> None:
        """What is loaded is here."""

    def used(self, memory: Bytes) -> None:
        """Operations here are done when they return."""
