"""Backing stores of blocks that are not resident: regions of files, host memory, scratch files, tiers."""

from __future__ import annotations

import contextlib
import functools
import logging
import mmap
import os
import tempfile
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from accelera.devices import CpuDevice
from accelera.errors import StoreError
from accelera.memory._internal import BackingStore, BackingStores, Bytes
from accelera.stores._internal import FlatFile, Placement
from accelera.units import format_bytes

__all__ = [
    "BackingStore",
    "BackingStores",
    "Bytes",
    "FileRegion",
    "OpenFile",
    "RamBacking",
    "RamRegion",
    "ScratchBacking",
    "TieredBacking",
]

_PORTABLE = 1
"""``cudaHostRegisterPortable``: pinned for every device of the process."""

FILE_BYTES = 1 << 30
"""Least size of one scratch file; it is sparse, so what is not written takes no room."""

ALIGNMENT_BYTES = 4096

_LOGGER = logging.getLogger("accelera.offload")


@final
class OpenFile:
    """All bytes of a file; takes over ``descriptor``."""

    def __init__(self, path: Path, descriptor: int, *, writable: bool = False) -> None:
        self.path = path
        self.nbytes = os.fstat(descriptor).st_size
        self.writable = writable
        self._descriptor = descriptor
        self._stamp = None if writable else _stamp(descriptor)
        self._close = weakref.finalize(self, os.close, descriptor)
        placement = Placement.dense((self.nbytes,), np.dtype(np.uint8))
        self._store = FlatFile(path, os.dup(descriptor), placement, writable=writable)

    @classmethod
    def existing(cls, path: str | Path) -> OpenFile:
        """Open a file for reading; raises StoreError when it cannot be."""
        try:
            return cls(Path(path), os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            raise StoreError(
                f"[offload] {path} cannot be opened: {error.strerror}; check where the checkpoint is"
            ) from error

    def read(self, start: int, out: Bytes) -> int:
        """Fill ``out`` with the bytes from ``start`` on.

        Raises StoreError when the file ends early, or was opened for reading and changed since.
        """
        self._check_unchanged()
        return self._store.read((slice(start, start + out.nbytes),), out)

    def write(self, start: int, data: Bytes) -> int:
        """Store ``data`` from byte ``start`` on; raises StoreError when the disk is full."""
        return self._store.write((slice(start, start + data.nbytes),), data)

    def map(self, start: int, nbytes: int) -> Bytes:
        """Return bytes mapped privately: pages of the file until somebody writes to them."""
        self._check_unchanged()
        before = start % mmap.ALLOCATIONGRANULARITY
        pages = mmap.mmap(
            self._descriptor,
            max(before + nbytes, 1),
            flags=mmap.MAP_PRIVATE,
            prot=mmap.PROT_READ | mmap.PROT_WRITE,
            offset=start - before,
        )
        mapped: Bytes = np.ndarray((nbytes,), np.uint8, pages, before)
        return mapped

    def close(self) -> None:
        """Close it; maps stay valid."""
        self._store.close()
        self._close()

    def _check_unchanged(self) -> None:
        if self._stamp is not None and _stamp(self._descriptor) != self._stamp:
            raise StoreError(
                f"[offload] {self.path} was truncated or changed after it was opened: the weights are "
                "in it; open the checkpoint again, and write a new file instead of changing this one"
            )


def _stamp(descriptor: int) -> tuple[int, int]:
    """Return the file's size and when its contents were last changed, in nanoseconds."""
    facts = os.fstat(descriptor)
    return facts.st_size, facts.st_mtime_ns


@final
class FileRegion:
    """``nbytes`` of an open file from byte ``offset``; transfers go around the page cache where they can.

    A region of a file that was opened for reading stays what it is; ``on_release`` takes back another.
    """

    def __init__(
        self,
        file: OpenFile,
        offset: int,
        nbytes: int,
        on_release: Callable[[FileRegion], None] | None = None,
    ) -> None:
        if offset < 0 or offset + nbytes > file.nbytes:
            raise StoreError(
                f"[offload] {file.path} has {file.nbytes} bytes; a region of {nbytes} at byte {offset} does "
                "not lie in it: the file is cut off, or its index is wrong"
            )
        self.file = file
        self.offset = offset
        self.nbytes = nbytes
        self._on_release = on_release

    @property
    def writable(self) -> bool:
        """Whether the file is open for writing."""
        return self.file.writable

    def read(self, start: int, out: Bytes) -> int:
        """Fill ``out`` with the bytes from ``start`` on; raises StoreError when the file ends early."""
        return self.file.read(self.offset + start, out)

    def write(self, start: int, data: Bytes) -> int:
        """Store ``data`` from byte ``start`` on; raises StoreError for a read-only file or a full disk."""
        return self.file.write(self.offset + start, data)

    def resident(self) -> None:
        """Return None: the bytes lie in a file."""

    def mapped(self) -> Bytes:
        """Return the region mapped privately: pages of the file until somebody writes to them."""
        return self.file.map(self.offset, self.nbytes)

    def release(self) -> None:
        """Give the region back to its store."""
        if self._on_release is not None:
            self._on_release(self)


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
            self._warn_not_pinned(code, slab.nbytes)
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

    def _warn_not_pinned(self, code: int, nbytes: int) -> None:
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
    """Clear CUDA's last error, so that torch does not attribute it to the next kernel of this thread.

    torch returns the error code of these calls and does not clear the error itself.
    """
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device=device)


def _runtime() -> Any:
    cuda: Any = torch.cuda
    return cuda.cudart()


@final
class ScratchBacking:
    """Regions of scratch files in ``folder``, reused by size; safe to use from several threads."""

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = Path(tempfile.gettempdir() if folder is None else folder).absolute()
        self._files: list[OpenFile] = []
        self._used_bytes = 0
        self._spare: dict[int, list[FileRegion]] = defaultdict(list)
        self._lock = threading.RLock()
        """The garbage collector may give a region back while this thread takes one."""

    def create(self, nbytes: int, on_release: Callable[[], None] | None = None) -> FileRegion:
        """Return a region of ``nbytes``; raises StoreError when the folder takes no files."""
        with self._lock:
            reclaim = functools.partial(self._reclaim, on_release)
            if self._spare[nbytes]:
                spare = self._spare[nbytes].pop()
                return FileRegion(spare.file, spare.offset, nbytes, reclaim)
            room = -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            if not self._files or self._used_bytes + room > self._files[-1].nbytes:
                self._files.append(_unlinked_file(self.folder, max(FILE_BYTES, room)))
                self._used_bytes = 0
            region = FileRegion(self._files[-1], self._used_bytes, nbytes, reclaim)
            self._used_bytes += room
            return region

    def close(self) -> None:
        """Close the files, and with that delete them."""
        for file in self._files:
            file.close()
        self._files.clear()
        self._spare.clear()

    def _reclaim(self, on_release: Callable[[], None] | None, region: FileRegion) -> None:
        with self._lock:
            self._spare[region.nbytes].append(region)
        if on_release is not None:
            on_release()


def _unlinked_file(folder: Path, nbytes: int) -> OpenFile:
    try:
        descriptor, name = tempfile.mkstemp(prefix=".accelera-offload-", dir=folder)
        try:
            os.unlink(name)
            os.ftruncate(descriptor, nbytes)
        except OSError:
            os.close(descriptor)
            raise
    except OSError as error:
        raise StoreError(
            f"[offload] no scratch file of {format_bytes(nbytes)} in {folder}: {error.strerror}; name "
            "another folder with store="
        ) from error
    return OpenFile(folder / "scratch", descriptor, writable=True)


@final
class TieredBacking:
    """RAM for what is created first, as long as it is at most ``ram_limit_bytes``; files for the rest.

    A region never changes its tier: a pass uses all blocks in turn, so no block gains more from RAM than
    another. Released room is used for regions created later. Safe to use from several threads.
    """

    def __init__(self, ram: RamBacking, files: ScratchBacking, ram_limit_bytes: int) -> None:
        self.ram_limit_bytes = ram_limit_bytes
        self._ram = ram
        self._files = files
        self._bytes = {"ram": 0, "files": 0}
        self._lock = threading.RLock()
        """The garbage collector may give a region back while this thread takes one."""

    @property
    def nbytes(self) -> Mapping[str, int]:
        """Bytes of the backing stores that there are, in ``"ram"`` and in ``"files"``."""
        with self._lock:
            return dict(self._bytes)

    def create(self, nbytes: int) -> RamRegion | FileRegion:
        """Return a region of ``nbytes``; raises DeviceMemoryError or StoreError when there is no room."""
        tier = self._reserve_tier(nbytes)
        try:
            backing = self._ram if tier == "ram" else self._files
            return backing.create(nbytes, lambda: self._count(tier, -nbytes))
        except BaseException:
            self._count(tier, -nbytes)
            raise

    def close(self) -> None:
        """Release all regions made here."""
        self._ram.close()
        self._files.close()

    def _reserve_tier(self, nbytes: int) -> str:
        with self._lock:
            tier = "ram" if self._bytes["ram"] + nbytes <= self.ram_limit_bytes else "files"
            self._count(tier, nbytes)
        return tier

    def _count(self, tier: str, nbytes: int) -> None:
        with self._lock:
            self._bytes[tier] += nbytes
