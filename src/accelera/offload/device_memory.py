"""Memory of resident blocks: pages of RAM, an accelerator's memory, or a simulated accelerator's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol, final

import numpy as np
import torch

from accelera._native import Arena
from accelera.devices import Device, SimulatedDevice
from accelera.devices._internal import TorchDevice
from accelera.errors import DeviceMemoryError
from accelera.memory._internal import DeviceMemory, host_memory
from accelera.offload.backing import BackingStore, Bytes
from accelera.units import format_bytes


class TorchMemory(DeviceMemory, Protocol):
    """The memory that operations compute on."""

    device: torch.device

    @property
    def arena(self) -> Arena | None:
        """Memory of the tensors beside blocks, where they are counted one by one."""

    def allocate(self, nbytes: int) -> tuple[torch.Tensor, Any]:
        """Return new memory as a uint8 tensor of ``nbytes`` on ``device``, and as the place knows it.

        Its contents are undefined. Raises DeviceMemoryError when there is none.
        """

    def lend(self, memory: Any) -> None:
        """Let operations that are handed over from now on see what is loaded into this memory."""

    def used(self, memory: Any) -> None:
        """Take note that an operation that was handed over by now may still be using this memory."""


@final
class CpuMemory:
    """Page-aligned host memory."""

    def __init__(self, arena: Arena) -> None:
        self.device = torch.device("cpu")
        self.arena = arena

    def allocate(self, nbytes: int) -> tuple[torch.Tensor, Bytes]:
        """Return pages of their own; raises DeviceMemoryError when RAM is short."""
        arena = self.arena
        unused = arena.touched_bytes - arena.committed_bytes - arena.ordinary_bytes
        if nbytes > unused and nbytes > (available := host_memory().available_bytes):
            raise DeviceMemoryError(
                f"[allocate] {format_bytes(nbytes)} on cpu: {format_bytes(available)} are available; "
                "work in smaller blocks, or free memory"
            )
        memory = arena.slab(nbytes)
        return torch.from_numpy(memory), memory

    def promise(self, nbytes: int) -> None:
        """Add to the bytes that are counted as the pool's."""
        self.arena.commit(nbytes)

    def release(self, memory: Bytes) -> None:
        """Do nothing: the arena frees the bytes with the last reference to them."""

    def load(self, home: BackingStore, memory: Bytes, start: int, stop: int) -> int:
        """Read a part of ``home``."""
        return home.read(start, memory[start:stop])

    def save(self, memory: Bytes, home: BackingStore, start: int, stop: int) -> int:
        """Write a part to ``home``."""
        return home.write(start, memory[start:stop])

    def lend(self, memory: Bytes) -> None:
        """Do nothing: loads are synchronous here."""

    def used(self, memory: Bytes) -> None:
        """Do nothing: operations are synchronous here."""


@final
class AcceleratorMemory:
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
        """Do nothing: torch's allocator of the device counts by itself."""

    def release(self, memory: torch.Tensor) -> None:
        """Wait for the work on the memory and give it back to torch."""
        self._device.release(memory)

    def load(self, home: BackingStore, memory: torch.Tensor, start: int, stop: int) -> int:
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

    def save(self, memory: torch.Tensor, home: BackingStore, start: int, stop: int) -> int:
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


@final
class SimulatedTensorMemory:
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
        """Add to the bytes that are counted as the pool's."""
        self.arena.commit(nbytes)

    def release(self, memory: Bytes) -> None:
        """Give the buffer back to the device."""
        self._device.release(memory)

    def load(self, home: BackingStore, memory: Bytes, start: int, stop: int) -> int:
        """Read a part of ``home`` and upload it."""
        resident = home.resident()
        if resident is None:
            host = np.empty(stop - start, np.uint8)
            home.read(start, host)
        else:
            host = resident[start:stop]
        self._device.upload(host, memory[start:stop])
        return stop - start

    def save(self, memory: Bytes, home: BackingStore, start: int, stop: int) -> int:
        """Download a part and write it to ``home``."""
        resident = home.resident()
        host = np.empty(stop - start, np.uint8) if resident is None else resident[start:stop]
        self._device.download(memory[start:stop], host)
        if resident is None:
            home.write(start, host)
        return stop - start

    def lend(self, memory: Bytes) -> None:
        """Do nothing: loads are synchronous here."""

    def used(self, memory: Bytes) -> None:
        """Do nothing: operations are synchronous."""


__all__ = ["CpuMemory", "SimulatedTensorMemory", "TorchMemory", "memory_on", "tensor_device"]


def tensor_device(device: Device) -> torch.device:
    """Return torch's device of the tensors on ``device``: a simulated one computes with the CPU's."""
    return torch.device("cpu" if isinstance(device, SimulatedDevice) else device.name)


def memory_on(device: Device | torch.device | str | None, arena: Callable[[], Arena]) -> TorchMemory:
    """Return the memory of ``device``, None meaning the CPU, where ``arena`` makes the memory of tensors.

    Raises DeviceError when the device is not there.
    """
    if isinstance(device, SimulatedDevice):
        return SimulatedTensorMemory(device, arena())
    named = (
        tensor_device(device)
        if isinstance(device, Device)
        else torch.device("cpu" if device is None else device)
    )
    if named.type == "cpu":
        return CpuMemory(arena())
    return AcceleratorMemory(str(named))
