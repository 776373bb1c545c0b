"""Sees to it that what PyTorch frees in RAM is given back to the system, and kept by no allocator.

glibc keeps freed memory: once a large tensor has been freed, tensors of up to 32 MiB come from a heap, in
which small ones that live on leave holes. These count against the budget although nothing is in them.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from functools import cache
from typing import Any

MAPPED_BYTES = 1 << 20
"""Tensors from this size on have pages of their own while something is offloaded."""
_USUAL_BYTES = 32 << 20
"""What glibc's own limit grows to in a process that frees large tensors."""
_MMAP_THRESHOLD = -3

_users = 0
_lock = threading.RLock()
"""The garbage collector may end a user while this thread counts another."""


def give_pages_back(user: object) -> None:
    """Give freed tensors of ``MAPPED_BYTES`` and more back to the system for as long as ``user`` lives.

    Nothing happens where the C library has no such choice.
    """
    _count(1)
    weakref.finalize(user, _count, -1).atexit = False


def trim() -> None:
    """Return the free pages of all heaps to the system; takes milliseconds."""
    release = getattr(_library(), "malloc_trim", None)
    if release is not None:
        release(ctypes.c_size_t(0))


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
