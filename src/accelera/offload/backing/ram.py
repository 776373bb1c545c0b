"""Backing store in host memory beside an accelerator, pinned where that helps."""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Callable
from typing import Any, final

import numpy as np
import torch

from accelera.devices import CpuDevice
from accelera.memory import Bytes
from accelera.units import format_bytes

_PORTABLE = 1
"""``cudaHostRegisterPortable``: pinned for every device of the process."""

_LOGGER = logging.getLogger("accelera.offload")


@final
class RamRegion:
    """A slab of pages of its own; pinned by ``pins`` where there are any. ``on_release`` hears of its end."""

    writable = True

    def __init__(
        self,
        device: CpuDevice,
        nbytes: int,
        pins: HostPins | None,
        on_release: Callable[[], None] | None = None,
    ) -> None:
        self.nbytes = nbytes
        self.slab: Bytes = device.allocate(nbytes)
        self._device = device
        self._pins = pins
        self._on_release = on_release
        if pins is not None and nbytes > 0:
            pins.pin(self.slab)

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
        if self._pins is not None:
            self._pins.unpin(self.slab)
        self._device.release(self.slab)
        if self._on_release is not None:
            self._on_release()


@final
class RamBacking:
    """Slabs of host memory, of exactly the bytes asked for; pinned ones for the CUDA device beside them."""

    def __init__(self, *, pinned_for: torch.device | None = None) -> None:
        self._device = CpuDevice()
        self._pins = None if pinned_for is None else HostPins(pinned_for)

    def create(self, nbytes: int, on_release: Callable[[], None] | None = None) -> RamRegion:
        """Return a slab of exactly ``nbytes``; raises DeviceMemoryError when RAM is short."""
        return RamRegion(self._device, nbytes, self._pins, on_release)

    def close(self) -> None:
        """Unpin all slabs; they go with their backing stores."""
        if self._pins is not None:
            self._pins.close()


@final
class HostPins:
    """Host memory that CUDA copies at full speed, because its pages stay where they are.

    Memory that goes while it is registered stays pinned, and later memory at its address cannot be: what is
    pinned is therefore unpinned when it is released, when nobody holds it any more, and at ``close``.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._unpin: dict[int, Any] = {}
        self._warned = False

    def pin(self, slab: Bytes) -> bool:
        """Register a slab; False, with one warning, when CUDA refuses."""
        address = slab.ctypes.data
        with torch.get_device_module(self._device).device(self._device):
            code = int(_runtime().cudaHostRegister(address, slab.nbytes, _PORTABLE))
        if code:
            self._refused(code, slab.nbytes)
            return False
        unpin = weakref.finalize(slab, _unregister, address, self._device, self._unpin)
        unpin.atexit = False
        self._unpin[address] = unpin
        return True

    def unpin(self, slab: Bytes) -> None:
        """Take a slab's registration back, if it has one."""
        unpin = self._unpin.get(slab.ctypes.data)
        if unpin is not None:
            unpin()

    def close(self) -> None:
        """Take all registrations back."""
        for unpin in list(self._unpin.values()):
            unpin()

    def _refused(self, code: int, nbytes: int) -> None:
        _clear_last_error(self._device)
        if not self._warned:
            self._warned = True
            _LOGGER.warning(
                "CUDA does not pin %s of RAM (error %d): offloaded weights there are copied more slowly; "
                "allow more locked memory (ulimit -l)",
                format_bytes(nbytes),
                code,
            )


def _unregister(address: int, device: torch.device, registered: dict[int, Any]) -> None:
    registered.pop(address, None)
    if int(_runtime().cudaHostUnregister(address)):
        _clear_last_error(device)


def _clear_last_error(device: torch.device) -> None:
    """Let the next kernel of this thread not be taken for what failed.

    torch returns the code of these calls and leaves the error where its check after a launch finds it.
    """
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device=device)


def _runtime() -> Any:
    cuda: Any = torch.cuda
    return cuda.cudart()
