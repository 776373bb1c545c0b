"""Share of the cores that a thread or a process may use; thread pools of libraries keep to it."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, final

from accelera._extras import loaded_module
from accelera._fork_locks import IMPORTING
from accelera._thread_limits import ThreadLimits

if TYPE_CHECKING:
    from accelera.devices import CpuDevice


_SHARES: list[int] = []


def become_worker(cores: int) -> None:
    """Note that this process is a worker, with the number of cores that it may use."""
    _SHARES.append(cores)


def process_share() -> int | None:
    """Return how many cores this worker may use; None when this process is no worker."""
    return _SHARES[0] if _SHARES else None


_LIBRARIES = ("numpy", "scipy.linalg", "torch", "sklearn")
"""Modules that bring thread pools along; a new one is looked for when one of them has been imported."""


@functools.cache
def usable_cores() -> int:
    """Return how many threads are worth running: affinity and control groups considered; found once.

    In a worker process these are its share.
    """
    with IMPORTING:
        from accelera.devices._internal import usable_processors

    return process_share() or usable_processors()


def cores_here() -> int:
    """Return how many threads are worth running from this thread: a worker has its share of the cores."""
    return thread_share() or usable_cores()


def thread_share() -> int | None:
    """Return how many cores a worker's thread may use; None in a thread that is no worker's."""
    share: int | None = getattr(_THREAD, "share", None)
    return share


@contextlib.contextmanager
def one_blas_thread_each(workers: int) -> Iterator[None]:
    """Let products of each of ``workers`` threads run on its share of this thread's cores, at least one.

    Limits of several callers hold together: the smallest wins. Each library has its own count back when the
    last caller has left, whatever threads are still at work.
    """
    if workers < 2:
        yield
        return
    with _POOLS.limited(max(1, cores_here() // workers)):
        yield


@functools.cache
def _cpu() -> CpuDevice:
    with IMPORTING:
        from accelera.devices import CpuDevice, get_device

    device = get_device("cpu")
    assert isinstance(device, CpuDevice), "the process's one CPU"
    return device


@contextlib.contextmanager
def worker_core_share(workers: int) -> Iterator[None]:
    """Make this thread one of ``workers``: managers inside its tasks start no more than its share."""
    with core_share(max(1, cores_here() // workers)):
        yield


def apply_thread_limits() -> None:
    """Give this thread, which may have served other batches, the counts of threads that hold now."""
    _POOLS.apply_thread_limits()


@contextlib.contextmanager
def core_share(share: int | None) -> Iterator[None]:
    """Give this thread a share of the cores, as ``thread_share`` returned it in another thread."""
    outer, _THREAD.share = thread_share(), share
    try:
        yield
    finally:
        _THREAD.share = outer


_THREAD = threading.local()


@final
class _Pools:
    """The thread pools of loaded libraries: BLAS through threadpoolctl, SciPy's also through our CPU device.

    The device keeps a count of its own for the library that SciPy is linked with, so it is limited as
    well, and has the last word.
    """

    def __init__(self) -> None:
        self._limits = ThreadLimits(on_lifted=self._apply)
        self._loaded: tuple[bool, ...] = ()
        self._usual: dict[str, tuple[Any, int]] = {}
        self._torch = _TorchThreads()

    @contextlib.contextmanager
    def limited(self, count: int) -> Iterator[None]:
        scipys = _cpu().limit_threads(count) if "scipy.linalg" in sys.modules else contextlib.nullcontext()
        with scipys, self._torch.limited(count):
            with self._limits.lock:
                self._record_usual_counts()
                self._limits.add(count)
                self._apply()
            try:
                yield
            finally:
                with self._limits.lock:
                    self._limits.remove(count)
                    self._apply()

    def apply_thread_limits(self) -> None:
        self._torch.apply_thread_limits()

    def _apply(self) -> None:
        self._release_controlling_thread()
        for pool, usual in self._usual.values():
            pool.set_num_threads(min(usual, self._limits.least(usual)))
        self._release_controlling_thread()

    def _release_controlling_thread(self) -> None:
        """Let any thread set the counts: some libraries accept them only from the first thread that did."""
        for pool, _ in self._usual.values():
            if hasattr(pool, "clear_controlling_thread"):
                pool.clear_controlling_thread(force=True)
                return

    def _record_usual_counts(self) -> None:
        """Note the usual counts; libraries that were loaded meanwhile are found."""
        loaded = tuple([name in sys.modules for name in _LIBRARIES])
        if loaded != self._loaded:
            self._loaded = loaded
            for pool in _blas_pools():
                if pool.filepath not in self._usual:
                    self._usual[pool.filepath] = (pool, pool.get_num_threads())
        if not self._limits:
            for path, (pool, _) in self._usual.items():
                self._usual[path] = (pool, pool.get_num_threads())


def _blas_pools() -> list[Any]:
    import threadpoolctl

    found = threadpoolctl.ThreadpoolController().lib_controllers
    return [pool for pool in found if pool.user_api == "blas"]


@final
class _TorchThreads:
    """torch's count, which each thread has for itself, with one for threads that are yet to begin."""

    def __init__(self) -> None:
        # Threads of pools ask for their count, so a forked child has nothing to set.
        self._limits = ThreadLimits(on_lifted=lambda: None)
        self._usual = 0

    @contextlib.contextmanager
    def limited(self, count: int) -> Iterator[None]:
        torch = loaded_module("torch")
        if not hasattr(torch, "set_num_threads"):
            yield
            return
        own = self._enter(torch, count)
        try:
            yield
        finally:
            self._leave(torch, count, own)

    def apply_thread_limits(self) -> None:
        """Set this thread's count to that of a new thread: torch keeps a count per thread."""
        torch = loaded_module("torch")
        with self._limits.lock:
            count = self._limits.least(self._usual)
            if count and hasattr(torch, "set_num_threads") and torch.get_num_threads() != count:
                torch.set_num_threads(count)

    def _enter(self, torch: Any, count: int) -> int:
        """Return what this thread is to have afterwards."""
        with self._limits.lock:
            own: int = torch.get_num_threads()
            if not self._limits:
                self._usual = own
            is_new = thread_share() is None and own == self._limits.least(0)
            self._limits.add(count)
            torch.set_num_threads(min(own, self._limits.least(own)))
            return self._usual if is_new else own

    def _leave(self, torch: Any, count: int, own: int) -> None:
        with self._limits.lock:
            self._limits.remove(count)
            torch.set_num_threads(own)
            others = self._limits.least(self._usual)
            if others != own:
                _set_for_new_threads(torch.set_num_threads, others)


def _set_for_new_threads(function: Callable[[int], None], count: int) -> None:
    """Set the count for threads that are yet to begin, and not for this one."""
    thread = threading.Thread(target=function, args=(count,))
    thread.start()
    thread.join()


_POOLS = _Pools()
