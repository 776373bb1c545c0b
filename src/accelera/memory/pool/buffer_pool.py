"""The buffer pool: bytes of many buffers inside one hard capacity.

Terms are those of a database's buffer manager. ``pin`` makes a buffer resident and holds it there,
``unpin`` lets go, ``prefetch`` starts loading without waiting, ``write_back`` saves a dirty buffer,
``evict`` gives one up. The books decide, so what is evicted is the policy's choice alone and the sum of
all buffers, those kept for reuse included, never exceeds the capacity.
"""

from __future__ import annotations

import threading
from concurrent.futures import Executor

from accelera.errors import BudgetExceededError
from accelera.memory.pool.books import BufferTable
from accelera.memory.pool.buffers import Allocator, Buffer, Buffers, Loader
from accelera.memory.pool.ledger import PoolStats
from accelera.policy import EvictionPolicy
from accelera.trace import Recorder


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
        self._books: BufferTable[Buffer] = BufferTable(capacity_bytes, policy, recorder=recorder, op=op)
        self._buffers = Buffers(allocator, self._books.stats, readers)
        self._books.memory = self._buffers
        self._lock = threading.RLock()

    @property
    def stats(self) -> PoolStats:
        """Hits, misses, evictions and peak so far."""
        return self._books.stats

    @property
    def capacity_bytes(self) -> int:
        """The hard capacity."""
        return self._books.capacity_bytes

    @property
    def resident_bytes(self) -> int:
        """Bytes of the buffers that are resident now."""
        return self._books.resident_bytes

    @property
    def bytes_loaded(self) -> int:
        """Bytes that loaders moved."""
        return self._buffers.bytes_loaded

    @property
    def bytes_saved(self) -> int:
        """Bytes that savers moved."""
        return self._buffers.bytes_saved

    @property
    def peak_allocated_bytes(self) -> int:
        """Most memory that was allocated, what was kept for reuse included."""
        return self._buffers.peak_allocated_bytes

    def __contains__(self, buffer: int) -> bool:
        with self._lock:
            return self._books.find(buffer) is not None

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
            found = self._books.find(buffer) or Buffer(buffer, nbytes, load)
            found.step = step
            found.role, found.dtype, found.name = role, dtype, name
            self._books.admit(found, step, write=write)
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
            found = self._books[buffer]
            if save is not None:
                found.saver = save
            self._books.unpin(found, found.step if step is None else step)

    def write_back(self, buffer: int) -> int:
        """Save ``buffer`` now if it is here and dirty; return the bytes moved."""
        with self._lock:
            found = self._books.find(buffer)
            saver = None if found is None else found.saver
            if found is None or saver is None or not self._books.must_save(found):
                return 0
            self._books.begin_save(found)
        saved = False
        try:
            moved = self._buffers.save(found, saver)
            saved = True
        finally:
            with self._lock:
                self._books.end_save(found, found.step, saved=saved)
        return moved

    def note_saved(self, buffer: int, *, step: int | None = None) -> None:
        """Take note that somebody else has written the contents of ``buffer`` to the next tier."""
        with self._lock:
            found = self._books[buffer]
            self._books.note_saved(found, found.step if step is None else step)

    def evict(self, buffer: int) -> None:
        """Give up ``buffer`` now, writing it back first if it is dirty.

        Raises ValueError while somebody holds it.
        """
        with self._lock:
            found = self._books[buffer]
            if self._books.pinned(found):
                raise ValueError(f"[pool] buffer {buffer} is pinned; unpin it before evicting it")
            self._books.give_up(found, found.step)

    def free(self, buffer: int, *, step: int | None = None) -> None:
        """End a buffer's life, pinned or not: its contents are needed no more."""
        with self._lock:
            found = self._books[buffer]
            self._books.free(found, found.step if step is None else step)

    def renew(self, policy: EvictionPolicy) -> None:
        """Follow ``policy`` from now on, whose clock begins anew and who is told of all that are here."""
        with self._lock:
            self._books.renew(policy)

    def flush(self) -> None:
        """Write back every dirty buffer that has somewhere to go."""
        with self._lock:
            waiting = [each.id for each in self._books.resident if self._books.must_save(each)]
        for each in waiting:
            self.write_back(each)

    def close(self) -> None:
        """Return all memory to the system; unsaved contents are lost."""
        with self._lock:
            self._buffers.close(self._books.resident)
