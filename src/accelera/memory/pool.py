"""The buffer pool: bytes of many buffers inside one hard capacity.

Terms are those of a database's buffer manager. ``pin`` makes a buffer resident and holds it there,
``unpin`` lets go, ``prefetch`` starts loading without waiting, ``write_back`` saves a dirty buffer,
``evict`` gives one up. The ledger keeps the books, so what is evicted is the policy's choice alone
and the sum of all buffers, those kept for reuse included, never exceeds the capacity.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, Protocol

from accelera.errors import BudgetExceededError
from accelera.memory.ledger import Ledger, PoolStats
from accelera.policy import EvictionPolicy
from accelera.trace import Access, Kind, Recorder

Memory = Any
Loader = Callable[[Memory], int]
"""Fills a buffer's memory; returns the bytes it moved."""


class Allocator(Protocol):
    """Where a pool's memory comes from: a device."""

    def allocate(self, nbytes: int) -> Memory:
        """Return uninitialised memory of ``nbytes``."""

    def release(self, buffer: Memory) -> None:
        """Give memory back to the system."""


class Buffer:
    """Bytes held by the pool under one id."""

    __slots__ = ("id", "loaded", "memory", "nbytes", "saver", "step")

    def __init__(self, id: int, nbytes: int, memory: Memory, loaded: Future[int] | None) -> None:
        self.id = id
        self.nbytes = nbytes
        self.memory = memory
        self.loaded = loaded
        self.saver: Loader | None = None
        self.step = 0

    def wait(self) -> Memory:
        """Return the memory once it is loaded; raise what the loader raised."""
        if self.loaded is not None:
            self.loaded.result()
        return self.memory


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
        self.bytes_loaded = 0
        self.bytes_saved = 0
        self.peak_allocated_bytes = 0
        self._ledger = Ledger(capacity_bytes, policy)
        self._allocator = allocator
        self._readers = readers
        self._recorder = recorder
        self._op = op
        self._lock = threading.RLock()
        self._count_lock = threading.Lock()
        self._buffers: dict[int, Buffer] = {}
        self._spare: dict[int, list[Memory]] = defaultdict(list)
        self._allocated_bytes = 0

    @property
    def stats(self) -> PoolStats:
        """Hits, misses, evictions and peak so far."""
        return self._ledger.stats

    @property
    def capacity_bytes(self) -> int:
        """The hard capacity."""
        return self._ledger.capacity_bytes

    @property
    def resident_bytes(self) -> int:
        """Bytes of the buffers that are resident now."""
        return self._ledger.resident_bytes

    def __contains__(self, buffer: int) -> bool:
        with self._lock:
            return buffer in self._ledger

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
            hit, _ = self._ledger.admit(buffer, nbytes, self._leave, write=write)
            found = self._buffers[buffer] if hit else self._begin(buffer, nbytes, load)
            found.step = step
            self._record(found, Kind.WRITE if write else Kind.READ, role, dtype, name)
        return found

    def prefetch(self, buffer: int, nbytes: int, load: Loader, *, step: int = 0) -> bool:
        """Start loading ``buffer`` if it fits without a wait; return whether it is on its way."""
        try:
            self.pin(buffer, nbytes, load, step=step)
        except BudgetExceededError:
            return False
        self.unpin(buffer)
        return True

    def unpin(self, buffer: int, *, save: Loader | None = None, step: int | None = None) -> None:
        """Let go of one pin; ``save`` writes the buffer back if it is dirty when it must leave.

        ``step`` is the one that held the pin, if that is not the buffer's latest.
        """
        with self._lock:
            found = self._buffers[buffer]
            if save is not None:
                found.saver = save
            self._ledger.unpin(buffer)
            self._record(found, Kind.RELEASE, step=step)

    def write_back(self, buffer: int) -> int:
        """Save ``buffer`` now if it is here and dirty; return the bytes moved."""
        with self._lock:
            found = self._buffers.get(buffer)
            if found is None or found.saver is None or not self._ledger.must_save(buffer):
                return 0
            self._ledger.hold(buffer)
            self._ledger.save(buffer)
        try:
            moved = self._save(found, found.saver)
        except BaseException:
            self._ledger.unsave(buffer)
            raise
        else:
            self._record(found, Kind.SAVE)
        finally:
            self._ledger.unpin(buffer)
        return moved

    def note_saved(self, buffer: int, *, step: int | None = None) -> None:
        """Take note that somebody else has written the contents of ``buffer`` to the next tier."""
        with self._lock:
            self._ledger.save(buffer)
            self._record(self._buffers[buffer], Kind.SAVE, step=step)

    def evict(self, buffer: int) -> None:
        """Give up ``buffer`` now, writing it back first if it is dirty.

        Raises ValueError while somebody holds it.
        """
        with self._lock:
            if not self._ledger.evictable(buffer):
                raise ValueError(f"[pool] buffer {buffer} is pinned; unpin it before evicting it")
            found = self._buffers[buffer]
            self._leave(buffer)
            self._ledger.give_up(buffer)
            self._record(found, Kind.EVICT)

    def free(self, buffer: int, *, step: int | None = None) -> None:
        """End a buffer's life, pinned or not: its contents are needed no more."""
        with self._lock:
            found = self._buffers.pop(buffer)
            self._keep(found)
            self._ledger.free(buffer)
            self._record(found, Kind.FREE, step=step)

    def flush(self) -> None:
        """Write back every dirty buffer that has somewhere to go."""
        with self._lock:
            waiting = [id for id in self._buffers if self._ledger.must_save(id)]
        for each in waiting:
            self.write_back(each)

    def close(self) -> None:
        """Return all memory to the system; unsaved contents are lost."""
        with self._lock:
            for found in self._buffers.values():
                if found.loaded is not None and not found.loaded.cancel():
                    found.loaded.exception()
                self._allocator.release(found.memory)
            self._buffers.clear()
            self._trim(self._allocated_bytes)

    def _begin(self, buffer: int, nbytes: int, load: Loader | None) -> Buffer:
        """Give an admitted buffer its memory and start its load; on failure it was never here."""
        found = Buffer(buffer, nbytes, None, None)
        try:
            found.memory = self._take(nbytes)
            if load is not None:
                self._start(found, load)
        except BaseException:
            self._ledger.free(buffer)
            if found.memory is not None:
                self._keep(found)
            raise
        self._buffers[buffer] = found
        return found

    def _start(self, found: Buffer, load: Loader) -> None:
        if self._readers is None:
            self._load(found, load)
        else:
            found.loaded = self._readers.submit(self._load, found, load)

    def _load(self, found: Buffer, load: Loader) -> int:
        moved = load(found.memory)
        with self._count_lock:
            self.bytes_loaded += moved
        return moved

    def _save(self, found: Buffer, saver: Loader) -> int:
        moved = saver(found.wait())
        with self._count_lock:
            self.bytes_saved += moved
        return moved

    def _leave(self, buffer: int) -> None:
        """Save a buffer that must go, and keep its memory; what the saver raises leaves it here."""
        found = self._buffers[buffer]
        intact = found.loaded is None or found.loaded.exception() is None
        if intact and found.saver is not None and self._ledger.must_save(buffer):
            self._save(found, found.saver)
        self._keep(self._buffers.pop(buffer))

    def _record(
        self,
        found: Buffer,
        kind: Kind,
        role: str = "",
        dtype: str = "",
        name: str = "",
        *,
        step: int | None = None,
    ) -> None:
        if self._recorder is not None:
            at = found.step if step is None else step
            self._recorder.record(Access(found.id, found.nbytes, at, kind, self._op, role, dtype, name))

    def _keep(self, found: Buffer) -> None:
        """Keep the memory of a departed buffer for the next one of its size."""
        self._spare[found.nbytes].append(found.memory)
        found.memory = None

    def _take(self, nbytes: int) -> Memory:
        """Return memory of ``nbytes``: a spare one, or a new one after trimming spares to fit.

        Spares never add to the peak: together with the buffers they take no more than buffers once did.
        """
        if self._spare[nbytes]:
            return self._spare[nbytes].pop()
        self._trim(self._allocated_bytes + nbytes - self._ledger.stats.peak_bytes)
        memory = self._allocator.allocate(nbytes)
        self._allocated_bytes += nbytes
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self._allocated_bytes)
        return memory

    def _trim(self, excess_bytes: int) -> None:
        """Release spare memory, largest first, until ``excess_bytes`` are given back."""
        for size in sorted(self._spare, reverse=True):
            while self._spare[size] and excess_bytes > 0:
                self._allocator.release(self._spare[size].pop())
                self._allocated_bytes -= size
                excess_bytes -= size
