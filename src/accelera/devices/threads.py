"""Threads worth running: processors this process may use, and the thread count of SciPy's BLAS.

The count belongs to that library, so it holds for the whole process; NumPy's and torch's own libraries
are not touched.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
from collections.abc import Callable, Iterator

from accelera._thread_limits import ThreadLimits
from accelera.errors import ArgumentError
from accelera.memory._internal import cgroup_processors


def usable_processors(proc: str = "/proc") -> int:
    """Return the number of threads worth running, at least one."""
    return max(1, min([_affinity(), *map(math.ceil, cgroup_processors(proc))]))


def _affinity() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


_NAMES = (
    ("scipy_openblas_get_num_threads", "scipy_openblas_set_num_threads"),
    ("openblas_get_num_threads", "openblas_set_num_threads"),
    ("MKL_Get_Max_Threads", "MKL_Set_Num_Threads"),
    ("bli_thread_get_num_threads", "bli_thread_set_num_threads"),
)


class BlasThreads:
    """Reads and limits the thread count; limits nest, and the smallest one applies."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._get, self._set = _count_functions(library)
        self._limits = ThreadLimits(on_lifted=self._apply)
        found = self._get()
        self._default_count = min(found, usable_processors())
        if self._default_count < found:
            self._set(self._default_count)

    @property
    def count(self) -> int:
        """Threads that a product runs on now."""
        return min(self._default_count, self._limits.least(self._default_count))

    @property
    def most(self) -> int:
        """Threads that a product runs on when nothing limits it."""
        return self._default_count

    @contextlib.contextmanager
    def limited(self, count: int) -> Iterator[None]:
        """Let products run on at most ``count`` threads meanwhile."""
        if count < 1:
            raise ArgumentError(f"[threads] a limit of {count} threads: a product needs at least 1")
        self._update(self._limits.add, count)
        try:
            yield
        finally:
            self._update(self._limits.remove, count)

    def _update(self, change: Callable[[int], None], count: int) -> None:
        with self._limits.lock:
            change(count)
            self._apply()

    def _apply(self) -> None:
        self._set(self.count)


def _count_functions(library: ctypes.CDLL) -> tuple[Callable[[], int], Callable[[int], object]]:
    """Return the functions that read and set the thread count; without them, one thread per processor."""
    for getter, setter in _NAMES:
        if hasattr(library, getter) and hasattr(library, setter):
            get, put = getattr(library, getter), getattr(library, setter)
            get.restype, put.restype = ctypes.c_int, None
            return get, put
    return usable_processors, lambda count: None
