"""Buffer pool: bytes of many buffers inside one hard capacity.

Terms are those of a database's buffer manager. ``pin`` makes a buffer resident and holds it there,
``unpin`` releases it, ``prefetch`` starts loading without waiting, ``write_back`` saves a dirty buffer,
``evict`` removes one. The buffer table decides: victims are the policy's choice alone, and all buffers
together, free memory kept for reuse included, never exceed the capacity. Reader threads load buffers;
a dirty victim is saved by the thread that evicts it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from typing import Any, Protocol, final

from accelera.errors import ArgumentError, BudgetExceededError
from accelera.memory.pool.backing_store import FreeList
from accelera.memory.pool.buffer_table import BufferTable
from accelera.memory.pool.ledger import PoolStats
from accelera.policy import EvictionPolicy
from accelera.trace._internal import Recorder

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
        """Fills the memory; None once the load has begun."""
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
    """The memory of resident buffers, and free memory kept for reuse.

    ``stats`` are those of the buffer table. Without ``readers``, ``arrive`` returns once the load is done.
    """

    def __init__(self, allocator: Allocator, stats: PoolStats, readers: Executor | None = None) -> None:
        self.bytes_loaded = 0
        self.bytes_saved = 0
        self.peak_allocated_bytes = 0
        self._allocator = allocator
        self._stats = stats
        self._readers = readers
        self._free_list: FreeList[Any] = FreeList()
        self._allocated_bytes = 0
        self._lock = threading.Lock()

    def here(self, buffer: Buffer) -> Buffer:
        """Return ``buffer``: it holds its own memory."""
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
            self._recycle(buffer)
            raise
        return buffer

    def leave(self, buffer: Buffer, *, save: bool) -> None:
        """Save a departing buffer and recycle its memory; if the saver raises, it stays resident."""
        intact = buffer.loaded is None or buffer.loaded.exception() is None
        if save and intact and buffer.saver is not None:
            self.save(buffer, buffer.saver)
        self._recycle(buffer)

    def store(self, buffer: Buffer) -> None:
        """Save a buffer that stays resident, if it has a saver."""
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
            self._recycle(each)
        for _, memory in self._free_list.clear():
            self._allocator.release(memory)
        self._allocated_bytes = 0

    def _load(self, buffer: Buffer, loader: Loader) -> int:
        moved = loader(buffer.memory)
        with self._lock:
            self.bytes_loaded += moved
        return moved

    def _recycle(self, buffer: Buffer) -> None:
        if buffer.memory is not None:
            self._free_list.add(buffer.nbytes, buffer.memory)
        buffer.memory = None

    def _take(self, nbytes: int) -> Any:
        """Return memory of ``nbytes``: a free piece, or a new one after trimming the free list.

        Free pieces never add to the peak: with the buffers they take no more than buffers alone once did.
        """
        spare = self._free_list.take(nbytes)
        if spare is not None:
            return spare
        excess_bytes = self._allocated_bytes + nbytes - self._stats.peak_bytes
        for size, memory in self._free_list.trim(excess_bytes):
            self._allocator.release(memory)
            self._allocated_bytes -= size
        memory = self._allocator.allocate(nbytes)
        self._allocated_bytes += nbytes
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self._allocated_bytes)
        return memory


class BufferPool:
    """Buffers by id inside a hard capacity; safe to use from several threads."""

    def __init__(
        self,
        capacity_bytes: int,
        policy: EvictionPolicy,
        allocator: Allocator,
        *,
        readers: Executor | None = None,
        recorder: Recorder | None = None,
        op: str = "",
    ) -> None:
        self._table: BufferTable[Buffer] = BufferTable(capacity_bytes, policy, recorder=recorder, op=op)
        self._buffers = Buffers(allocator, self._table.stats, readers)
        self._table.memory = self._buffers
        self._lock = threading.RLock()

    @property
    def stats(self) -> PoolStats:
        """Hits, misses, evictions and peak so far."""
        return self._table.stats

    @property
    def capacity_bytes(self) -> int:
        """The hard capacity."""
        return self._table.capacity_bytes

    @property
    def resident_bytes(self) -> int:
        """Bytes of the buffers that are resident now."""
        return self._table.resident_bytes

    @property
    def bytes_loaded(self) -> int:
        """Bytes moved by loaders."""
        return self._buffers.bytes_loaded

    @property
    def bytes_saved(self) -> int:
        """Bytes moved by savers."""
        return self._buffers.bytes_saved

    @property
    def peak_allocated_bytes(self) -> int:
        """Most memory allocated at once, free memory kept for reuse included."""
        return self._buffers.peak_allocated_bytes

    def __contains__(self, buffer: int) -> bool:
        with self._lock:
            return self._table.find(buffer) is not None

    def pin(
        self,
        buffer: int,
        nbytes: int,
        load: Loader | None = None,
        *,
        step: int = 0,
        write: bool = False,
        role: str = "",
        dtype: str = "",
        name: str = "",
    ) -> Buffer:
        """Hold ``buffer`` in the pool and return it, loading it if it is not resident.

        With reader threads the load runs in the background: ``Buffer.wait`` returns the memory
        once it is there. Raises BudgetExceededError when pinned buffers leave no room.
        """
        with self._lock:
            found = self._table.find(buffer) or Buffer(buffer, nbytes, load)
            found.step = step
            found.role, found.dtype, found.name = role, dtype, name
            self._table.admit(found, step, write=write)
        return found

    def prefetch(self, buffer: int, nbytes: int, load: Loader, *, step: int = 0) -> bool:
        """Start loading ``buffer`` if it fits now; return whether it is loading or resident."""
        try:
            self.pin(buffer, nbytes, load, step=step)
        except BudgetExceededError:
            return False
        self.unpin(buffer)
        return True

    def unpin(self, buffer: int, *, save: Loader | None = None, step: int | None = None) -> None:
        """Drop one pin; ``save`` writes the buffer back if it is dirty when it is evicted.

        ``step`` is the one that held the pin, if that is not the buffer's latest.
        """
        with self._lock:
            found = self._table[buffer]
            if save is not None:
                found.saver = save
            self._table.unpin(found, found.step if step is None else step)

    def write_back(self, buffer: int) -> int:
        """Save ``buffer`` now if it is here and dirty; return the bytes moved."""
        with self._lock:
            found = self._table.find(buffer)
            saver = None if found is None else found.saver
            if found is None or saver is None or not self._table.must_save(found):
                return 0
            self._table.begin_save(found)
        saved = False
        try:
            moved = self._buffers.save(found, saver)
            saved = True
        finally:
            with self._lock:
                self._table.end_save(found, found.step, saved=saved)
        return moved

    def note_saved(self, buffer: int, *, step: int | None = None) -> None:
        """Note that the caller has written the contents of ``buffer`` to the next tier."""
        with self._lock:
            found = self._table[buffer]
            self._table.note_saved(found, found.step if step is None else step)

    def evict(self, buffer: int) -> None:
        """Evict ``buffer`` now, writing it back first if it is dirty.

        Raises ValueError while it is pinned.
        """
        with self._lock:
            found = self._table[buffer]
            if self._table.pinned(found):
                raise ArgumentError(f"[pool] buffer {buffer} is pinned; unpin it before evicting it")
            self._table.give_up(found, found.step)

    def free(self, buffer: int, *, step: int | None = None) -> None:
        """Free ``buffer``, pinned or not: its contents are no longer needed."""
        with self._lock:
            found = self._table[buffer]
            self._table.free(found, found.step if step is None else step)

    def renew(self, policy: EvictionPolicy) -> None:
        """Use ``policy`` from now on: its clock starts at 0, and all resident buffers are inserted first."""
        with self._lock:
            self._table.renew(policy)

    def flush(self) -> None:
        """Write back every dirty buffer that has a saver."""
        with self._lock:
            waiting = [each.id for each in self._table.resident if self._table.must_save(each)]
        for each in waiting:
            self.write_back(each)

    def close(self) -> None:
        """Return all memory to the system; unsaved contents are lost."""
        with self._lock:
            self._buffers.close(self._table.resident)
