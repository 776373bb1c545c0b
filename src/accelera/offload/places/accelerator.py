"""An accelerator's memory as the place of resident blocks, filled and emptied while it computes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import final

import torch

from accelera.devices.torch_device import TorchDevice
from accelera.offload.homes import Bytes, Home


@final
class AcceleratorPlace:
    """Memory of one accelerator, by torch's name for it; ``"cpu"`` runs the same code without streams.

    Transfers go on streams of their own: operations wait for the blocks they use, and transfers for the
    operations that use what they overwrite, and for nothing else.
    """

    def __init__(self, name: str) -> None:
        self.device = torch.device(name)
        self.arena = None
        self._device = TorchDevice(name)

    def allocate(self, nbytes: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return memory of the accelerator; raises DeviceMemoryError when there is none."""
        memory = self._device.allocate(nbytes)
        return memory, memory

    def promise(self, nbytes: int) -> None:
        """Torch's allocator of the device counts by itself."""

    def release(self, memory: torch.Tensor) -> None:
        """Wait for the work on the memory and give it back to torch."""
        self._device.release(memory)

    def load(self, home: Home, memory: torch.Tensor, start: int, stop: int) -> int:
        """Read a part of ``home`` and send it; the last of it may be on its way when this returns."""
        resident = home.resident()
        if resident is not None:
            self._device.transfer(torch.from_numpy(resident[start:stop]), memory[start:stop])
            return stop - start
        for begin in range(start, stop, self._device.lent_bytes):
            end = min(begin + self._device.lent_bytes, stop)
            with self._lent() as host:
                home.read(begin, host[: end - begin])
                self._device.upload(host[: end - begin], memory[begin:end])
        return stop - start

    def save(self, memory: torch.Tensor, home: Home, start: int, stop: int) -> int:
        """Fetch a part, when the operations that make it are done, and write it to ``home``."""
        resident = home.resident()
        if resident is not None:
            self._device.transfer(memory[start:stop], torch.from_numpy(resident[start:stop]))
            return stop - start
        for begin in range(start, stop, self._device.lent_bytes):
            end = min(begin + self._device.lent_bytes, stop)
            with self._lent() as host:
                self._device.download(memory[begin:end], host[: end - begin])
                home.write(begin, host[: end - begin])
        return stop - start

    def lend(self, memory: torch.Tensor) -> None:
        """Let operations of the current stream wait for what is on its way to this memory."""
        self._device.admit(memory)

    def used(self, memory: torch.Tensor) -> None:
        """Let transfers of this memory wait for the operations that the current stream was given."""
        self._device.used(memory)

    @contextlib.contextmanager
    def _lent(self) -> Iterator[Bytes]:
        """Lend pinned memory for one piece."""
        host = self._device.lend_host()
        assert host is not None, "it was waited for"
        try:
            yield host
        finally:
            self._device.take_back(host)
