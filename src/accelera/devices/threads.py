"""Threads worth running: processors this process may use, and the thread count of SciPy's BLAS.

The count belongs to that library, so it holds for the whole process; NumPy's and torch's own libraries
are not touched.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import threading
from collections.abc import Callable, Iterator
from weakref import WeakSet

from accelera.memory import cgroup_processors
from accelera.thread_limits import ThreadLimit, lift_limits_of_others


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
        self._lock = threading.Lock()
        self._limits: list[ThreadLimit] = []
        found = self._get()
        self._default_count = min(found, usable_processors())
        if self._default_count < found:
            self._set(self._default_count)
        _INSTANCES.add(self)

    @property
    def count(self) -> int:
        """Threads that a product runs on now."""
        return min([self._default_count, *(count for _, count in self._limits)])

    @property
    def most(self) -> int:
        """Threads that a product runs on when nothing limits it."""
        return self._default_count

    @contextlib.contextmanager
    def limited(self, count: int) -> Iterator[None]:
        """Let products run on at most ``count`` threads meanwhile."""
        if count < 1:
            raise ValueError(f"[threads] a limit of {count} threads: a product needs at least 1")
        limit = threading.get_ident(), count
        self._update_limits(self._limits.append, limit)
        try:
            yield
        finally:
            self._update_limits(self._limits.remove, limit)

    def _update_limits(self, how: Callable[[ThreadLimit], None], limit: ThreadLimit) -> None:
        with self._lock:
            how(limit)
            self._set(self.count)

    def before_fork(self) -> None:
        """Let no other thread change the limits while the process forks."""
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Let threads change the limits again."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Lift the limits of threads that the child does not have."""
        self._lock = threading.Lock()
        if lift_limits_of_others(self._limits):
            self._set(self.count)


def _count_functions(library: ctypes.CDLL) -> tuple[Callable[[], int], Callable[[int], object]]:
    """Return the functions that read and set the thread count; without them, one thread per processor."""
    for getter, setter in _NAMES:
        if hasattr(library, getter) and hasattr(library, setter):
            get, put = getattr(library, getter), getattr(library, setter)
            get.restype, put.restype = ctypes.c_int, None
            return get, put
    return usable_processors, lambda count: None


_INSTANCES: WeakSet[BlasThreads] = WeakSet()


def _at_fork(step: Callable[[BlasThreads], None]) -> Callable[[], None]:
    def run() -> None:
        for each in list(_INSTANCES):
            step(each)

    return run


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_at_fork(BlasThreads.before_fork),
        after_in_parent=_at_fork(BlasThreads.after_fork_in_parent),
        after_in_child=_at_fork(BlasThreads.after_fork_in_child),
    )
