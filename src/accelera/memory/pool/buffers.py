"""The bytes behind the books of a buffer pool: loaded by reader threads, saved by who makes them leave."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from typing import Any, Protocol, final

from accelera.memory.pool.ledger import PoolStats
from accelera.memory.pool.spares import Spares

Loader = Callable[[Any], int]
"""Fills a buffer's memory, or saves what is in it; returns the bytes it moved."""


class Allocator(Protocol):
    """Source of a pool's memory: a device."""

    def allocate(self, nbytes: int) -> Any:
        """Return uninitialised memory of ``nbytes``."""

    def release(self, buffer: Any) -> None:
        """Give memory back to the system."""


@final
class Buffer:
    """Bytes held by the pool under one id."""

    __slots__ = ("dtype", "id", "loaded", "loader", "memory", "name", "nbytes", "role", "saver", "step")

    def __init__(self, id: int, nbytes: int, loader: Loader | None = None) -> None:
        self.id = id
        self.nbytes = nbytes
        self.loader = loader
        """What is to fill it, until that has begun."""
        self.memory: Any = None
        self.loaded: Future[int] | None = None
        self.saver: Loader | None = None
        self.step = 0
        self.role = self.dtype = self.name = ""

    def wait(self) -> Any:
        """Return the memory once it is loaded; raise what the loader raised."""
        if self.loaded is not None:
            self.loaded.result()
        return self.memory


@final
class Buffers:
    """The memory of the buffers that are resident, and of some that were.

    ``stats`` are those of the books. Without ``readers`` loading is over when ``arrive`` returns.
    """

    def __init__(self, allocator: Allocator, stats: PoolStats, readers: Executor | None = None) -> None:
        self.bytes_loaded = 0
        self.bytes_saved = 0
        self.peak_allocated_bytes = 0
        self._allocator = allocator
        self._stats = stats
        self._readers = readers
        self._spares: Spares[Any] = Spares()
        self._allocated_bytes = 0
        self._lock = threading.Lock()

    def here(self, buffer: Buffer) -> Buffer:
        """Return ``buffer``, which has its memory itself."""
        return buffer

    def arrive(self, buffer: Buffer, *, load: bool) -> Buffer:
        """Give an admitted buffer its memory and start its load, if it has any."""
        loader, buffer.loader = buffer.loader, None
        buffer.memory = self._take(buffer.nbytes)
        try:
            if loader is not None and self._readers is not None:
                buffer.loaded = self._readers.submit(self._load, buffer, loader)
            elif loader is not None:
                self._load(buffer, loader)
        except BaseException:
            self._keep(buffer)
            raise
        return buffer

    def leave(self, buffer: Buffer, *, save: bool) -> None:
        """Save a buffer that must go, and keep its memory; what the saver raises leaves it here."""
        intact = buffer.loaded is None or buffer.loaded.exception() is None
        if save and intact and buffer.saver is not None:
            self.save(buffer, buffer.saver)
        self._keep(buffer)

    def store(self, buffer: Buffer) -> None:
        """Save a buffer that stays, if it has a saver."""
        if buffer.saver is not None:
            self.save(buffer, buffer.saver)

    def save(self, buffer: Buffer, saver: Loader) -> int:
        """Save a buffer once it is loaded; return the bytes moved."""
        moved = saver(buffer.wait())
        with self._lock:
            self.bytes_saved += moved
        return moved

    def close(self, resident: Iterable[Buffer]) -> None:
        """Return all memory to the system, that of the ``resident`` ones too."""
        for each in resident:
            if each.loaded is not None and not each.loaded.cancel():
                each.loaded.exception()
            self._keep(each)
        for _, memory in self._spares.clear():
            self._allocator.release(memory)
        self._allocated_bytes = 0

    def _load(self, buffer: Buffer, loader: Loader) -> int:
        moved = loader(buffer.memory)
        with self._lock:
            self.bytes_loaded += moved
        return moved

    def _keep(self, buffer: Buffer) -> None:
        if buffer.memory is not None:
            self._spares.keep(buffer.nbytes, buffer.memory)
        buffer.memory = None

    def _take(self, nbytes: int) -> Any:
        """Return memory of ``nbytes``: a spare one, or a new one after trimming spares to fit.

        Spares never add to the peak: together with the buffers they take no more than buffers once did.
        """
        spare = self._spares.take(nbytes)
        if spare is not None:
            return spare
        excess_bytes = self._allocated_bytes + nbytes - self._stats.peak_bytes
        for size, memory in self._spares.part_with(excess_bytes):
            self._allocator.release(memory)
            self._allocated_bytes -= size
        memory = self._allocator.allocate(nbytes)
        self._allocated_bytes += nbytes
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self._allocated_bytes)
        return memory
