"""Mapped files that spilled results are in: shared with the file, and private from a fork on.

A fork copies the memory of a process, but shares a shared mapping: writes of a child would reach its parent.
Before each fork all mappings therefore become private. From then on writes of either process take memory.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
import warnings
import weakref
from functools import cache
from typing import Any, final

_NORESERVE = 0x4000
"""``MAP_NORESERVE`` of Linux, which the module ``mmap`` names from Python 3.13 on."""

_FIXED = 0x10
_FAILED = ctypes.c_void_p(-1).value


@final
class FileMapping(mmap.mmap):
    """All bytes of a file, readable and writable; takes over ``descriptor``.

    Raises OSError, and closes the descriptor, when the system maps no more.
    """

    _descriptor: int
    _nbytes: int
    _is_private: bool

    def __new__(cls, descriptor: int, nbytes: int) -> FileMapping:
        """Map the file over a range of addresses, whose release is that of ``mmap.mmap``."""
        try:
            # Without a file, mmap.mmap holds no second descriptor.
            self = super().__new__(cls, -1, nbytes, flags=_anonymous())
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor, self._nbytes, self._is_private = descriptor, nbytes, False
        weakref.finalize(self, os.close, descriptor).atexit = False
        self._map(mmap.MAP_SHARED)
        with _lock:
            _mappings.add(self)
        return self

    def make_private(self) -> None:
        """Keep later writes out of the file; the contents stay. Raises OSError when the system refuses."""
        if not self._is_private:
            self._map(mmap.MAP_PRIVATE | _NORESERVE)
            self._is_private = True

    def _map(self, flags: int) -> None:
        start = ctypes.c_char.from_buffer(self)
        address = ctypes.addressof(start)
        mapped = _system_mmap()(
            address, self._nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags | _FIXED, self._descriptor, 0
        )
        if mapped == _FAILED:
            number = ctypes.get_errno() or errno.ENOMEM
            raise OSError(number, os.strerror(number))


def _anonymous() -> int:
    return mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE


@cache
def _system_mmap() -> Any:
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    function.argtypes = [
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int),
        ctypes.c_ssize_t,
    ]
    return function


_mappings: weakref.WeakSet[FileMapping] = weakref.WeakSet()
_lock = threading.Lock()
"""Held during a fork, so that no mapping is created between the last one made private and the fork."""


def _before_fork() -> None:
    _lock.acquire()
    for mapping in list(_mappings):
        try:
            mapping.make_private()
        except OSError as error:
            warnings.warn(
                f"[fork] a spilled result stays shared with the child process: {error.strerror}; raise "
                "vm.max_map_count, or start processes with 'spawn'",
                stacklevel=2,
            )


def _after_fork() -> None:
    _lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
