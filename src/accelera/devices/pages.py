"""Host memory in whole pages, straight from the system and straight back to it."""

from __future__ import annotations

import mmap
import threading
from typing import Any

import numpy as np

from accelera.errors import DeviceError, DeviceMemoryError
from accelera.units import format_bytes

HUGE_PAGE_FROM_BYTES = 4 << 20
"""Buffers from this size on ask for huge pages (where the kernel grants them on request)."""

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Pages:
    """Anonymous private maps, known by their address; safe to use from several threads.

    A buffer's pages are returned when it is released, even while views of it live: such views then
    read zeros, and the address range itself goes with the last of them.
    """

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._maps: dict[int, tuple[mmap.mmap, int]] = {}
        self._lock = threading.Lock()

    @property
    def allocated_bytes(self) -> int:
        """Sum of the sizes of the buffers handed out and not released."""
        with self._lock:
            return sum(nbytes for _, nbytes in self._maps.values())

    def allocate(self, nbytes: int) -> Bytes:
        """Return a zeroed buffer that starts on a page boundary.

        Raises DeviceMemoryError when the system refuses.
        """
        try:
            pages = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:
            raise DeviceMemoryError(
                f"[allocate] {format_bytes(nbytes)} on {self._owner}: the system refused ({error}); "
                f"release other buffers or work in smaller blocks"
            ) from error
        if nbytes >= HUGE_PAGE_FROM_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
            pages.madvise(mmap.MADV_HUGEPAGE)
        buffer: Bytes = np.ndarray((nbytes,), dtype=np.uint8, buffer=pages)
        with self._lock:
            self._maps[address(buffer)] = (pages, nbytes)
        return buffer

    def release(self, buffer: Bytes) -> int:
        """Return the pages of ``buffer`` to the system; return its size in bytes.

        Raises DeviceError when it is not a live buffer of this owner.
        """
        with self._lock:
            found = self._maps.pop(address(buffer), None)
        if found is None:
            raise DeviceError(
                f"[release] a buffer of {format_bytes(buffer.nbytes)} was never allocated on {self._owner}, "
                f"or was released before; release each buffer of allocate() once"
            )
        pages, nbytes = found
        pages.madvise(mmap.MADV_DONTNEED)
        return nbytes


def address(array: np.ndarray[Any, Any]) -> int:
    """Return where the first element of ``array`` lies."""
    return int(array.ctypes.data)
