"""Memory of PyTorch's tensors in RAM: taken from a model's arena, or given back by the C library's heap."""

from __future__ import annotations

import ctypes
import threading
import weakref
from functools import cache
from typing import Any

from accelera._native import arena_functions
from accelera.devices.torch_shim import shim_library

MAPPED_BYTES = 1 << 20
"""Tensors from this size on have pages of their own while something is offloaded."""
_USUAL_BYTES = 32 << 20
"""The size to which glibc's own limit grows in a process that frees large tensors."""
_MMAP_THRESHOLD = -3

_users = 0
_lock = threading.RLock()
"""The garbage collector may end a user while this thread counts another."""


@cache
def arenas_in_torch() -> bool:
    """Whether PyTorch takes tensors in RAM from arenas (``csrc/memory/arena.h``); arranges it if it can.

    It needs the library that is compiled for the torch that is loaded. Once arranged it stays: threads that
    enter no arena get their memory as before.
    """
    library = shim_library()
    if library is None or not hasattr(library, "accelera_use_arenas"):
        return False
    arrange = library.accelera_use_arenas
    arrange.restype, arrange.argtypes = ctypes.c_char_p, [ctypes.c_int64] * 3
    return arrange(*arena_functions()) is None


def give_pages_back(user: object) -> None:
    """Give freed tensors of ``MAPPED_BYTES`` and more back to the system for as long as ``user`` lives.

    For processes whose tensors come from no arena: glibc keeps freed memory. Once a large tensor has been
    freed, tensors of up to 32 MiB come from a heap, in which small ones that live on leave holes. These count
    against the budget although nothing is in them. Nothing happens where the C library has no such choice.
    """
    _count(1)
    weakref.finalize(user, _count, -1).atexit = False


def trim() -> None:
    """Return the free pages of all heaps to the system; takes milliseconds."""
    release = getattr(_library(), "malloc_trim", None)
    if release is not None:
        release(ctypes.c_size_t(0))


def free_heap_bytes() -> int:
    """Return the bytes that the C library's main heap holds and nobody uses; 0 where it does not tell."""
    ask = getattr(_library(), "mallinfo2", None)
    if ask is None:
        return 0
    ask.restype = _HeapFigures
    return int(ask().free_bytes)


class _HeapFigures(ctypes.Structure):
    """``struct mallinfo2`` of glibc."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks"),
            *("free_bytes", "keepcost"),
        )
    ]


def _count(change: int) -> None:
    global _users
    with _lock:
        before, _users = _users, _users + change
        if not (before and _users):
            _set_threshold(MAPPED_BYTES if _users else _USUAL_BYTES)


def _set_threshold(nbytes: int) -> None:
    choose = getattr(_library(), "mallopt", None)
    if choose is not None:
        choose(_MMAP_THRESHOLD, nbytes)


@cache
def _library() -> Any:
    try:
        return ctypes.CDLL(None)
    except (OSError, TypeError):
        return None
