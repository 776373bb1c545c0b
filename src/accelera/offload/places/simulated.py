"""A simulated accelerator's memory as the place of resident blocks: counted, limited, behind its own link."""

from __future__ import annotations

from typing import final

import numpy as np
import torch

from accelera._native import Arena
from accelera.devices import SimulatedDevice
from accelera.offload.homes import Bytes, Home


@final
class SimulatedPlace:
    """Blocks lie in the device's buffers; other tensors count as the device's when they lie in ``arena``.

    To torch both are tensors of the CPU, so operations on them are real ones.
    """

    def __init__(self, device: SimulatedDevice, arena: Arena) -> None:
        self.device = torch.device("cpu")
        self.arena = arena
        self._device = device

    def allocate(self, nbytes: int) -> tuple[torch.Tensor, Bytes]:
        """Return a buffer of the device; raises DeviceMemoryError when its capacity is exceeded."""
        memory = self._device.allocate(nbytes)
        return torch.from_numpy(memory), memory

    def promise(self, nbytes: int) -> None:
        """Count so many more bytes (or fewer) as the pool's."""
        self.arena.commit(nbytes)

    def release(self, memory: Bytes) -> None:
        """Give the buffer back to the device."""
        self._device.release(memory)

    def load(self, home: Home, memory: Bytes, start: int, stop: int) -> int:
        """Read a part of ``home`` and upload it."""
        resident = home.resident()
        if resident is None:
            host = np.empty(stop - start, np.uint8)
            home.read(start, host)
        else:
            host = resident[start:stop]
        self._device.upload(host, memory[start:stop])
        return stop - start

    def save(self, memory: Bytes, home: Home, start: int, stop: int) -> int:
        """Download a part and write it to ``home``."""
        resident = home.resident()
        host = np.empty(stop - start, np.uint8) if resident is None else resident[start:stop]
        self._device.download(memory[start:stop], host)
        if resident is None:
            home.write(start, host)
        return stop - start

    def lend(self, memory: Bytes) -> None:
        """What is loaded is here."""

    def used(self, memory: Bytes) -> None:
        """Operations are done when they return."""
