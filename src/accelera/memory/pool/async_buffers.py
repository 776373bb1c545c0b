"""Memory of resident blocks, filled from backing stores and saved in the background.

The buffer table decides at once; the bytes follow. A block that takes over memory waits, in a reader thread,
until the former contents are saved, so that never more than the capacity is allocated.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, final

from accelera.memory.pool.backing_store import BackingStore, BackingStores, DeviceMemory, FreeList, PoolBlock
from accelera.memory.pool.transfers import Transfer, TransferThreads


@final
class Slab:
    """Memory for one block at a time, allocated once earlier slabs have been released."""

    __slots__ = ("loading", "memory", "nbytes", "promised", "saving", "view")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.view: Any = None
        """The bytes in the form in which operations use them."""
        self.memory: Any = None
        """The same bytes in the form that ``DeviceMemory`` takes; None until allocated."""
        self.promised = False
        """Whether ``DeviceMemory.promise`` counts it."""
        self.loading: Transfer | None = None
        self.saving: Transfer | None = None

    @property
    def idle(self) -> bool:
        """Whether it is allocated and no transfer uses it."""
        loading, saving = self.loading, self.saving
        return self.memory is not None and (not loading or loading.over) and (not saving or saving.done)

    @property
    def exists_or_will(self) -> bool:
        """Whether it is allocated, or a pending transfer may still allocate it."""
        return self.memory is not None or (self.loading is not None and not self.loading.over)

    def wait_loaded(self) -> Any:
        """Return the bytes once they are loaded; raises the error of a load that failed."""
        loading = self.loading
        if loading is not None:
            loading.wait()
            self.loading = None
        assert self.memory is not None, "a loaded slab is allocated"
        return self.view

    def wait_saved(self) -> None:
        """Wait until the bytes are saved; a failed save is tried once more, and its error raised."""
        saving = self.saving
        if saving is not None:
            saving.wait_or_repeat()


PART_BYTES = 16 << 20
"""A transfer is cut into parts of this size, which go through several threads at once."""


@final
class AsyncBuffers:
    """The memory of the blocks that are resident."""

    def __init__(
        self, capacity_bytes: int, place: DeviceMemory, homes: BackingStores, readers: int = 2
    ) -> None:
        self.peak_allocated_bytes = 0
        self._capacity_bytes = capacity_bytes
        self._device_memory = place
        self._backing_stores = homes
        self._readers = TransferThreads(readers, "accelera-read")
        self._writers = TransferThreads(1, "accelera-write")
        for threads in (self._readers, self._writers):
            weakref.finalize(self, threads.shutdown)
        self._slabs: dict[int, Slab] = {}
        self._free_list: FreeList[Slab] = FreeList()
        self._retired: list[Slab] = []
        self._promised_bytes = 0
        self._allocated_bytes = 0
        self._lock = threading.Lock()

    @property
    def bytes_read(self) -> int:
        """Bytes read from backing stores."""
        return self._readers.bytes_moved

    @property
    def bytes_written(self) -> int:
        """Bytes written to backing stores."""
        return self._writers.bytes_moved

    @property
    def allocated_bytes(self) -> int:
        """Bytes of memory that are allocated now."""
        return self._allocated_bytes

    @property
    def settled(self) -> bool:
        """Whether no memory is being allocated or released at this moment."""
        return not self._lock.locked()

    def limit(self, nbytes: int) -> None:
        """Let at most ``nbytes`` be allocated from now on; wait until what exceeds that is released.

        Only slabs without a block are released: resident blocks keep theirs.
        """
        self._capacity_bytes = nbytes
        self._retire_slabs(self._promised_bytes - nbytes)
        self._give_back(self._retired)
        self._release_idle()

    def here(self, block: PoolBlock) -> Slab:
        """Return the memory of a resident block."""
        return self._slabs[block.id]

    def arrive(self, block: PoolBlock, *, load: bool) -> Slab:
        """Give an admitted block its memory and begin to load it, or leave its contents undefined."""
        slab = self._slabs[block.id] = self._take_slab(block.nbytes)
        home = block.home if load else None
        leaving, block.leaving = block.leaving, None
        saving = slab.saving
        waits = [wait for wait in (saving, leaving) if wait is not None and not wait.done]
        if home is None and slab.idle and not self._retired:
            slab.loading = slab.saving = None
            return slab
        prepare = _RunOnce(
            functools.partial(self._prepare, slab, slab.loading, saving, waits, tuple(self._retired))
        )
        slab.loading = self._readers.submit(self._load_parts(home, slab, prepare))
        return slab

    def leave(self, block: PoolBlock, *, save: bool) -> None:
        """Free the memory of an evicted block for other blocks; with ``save``, once it is saved."""
        slab = self._slabs[block.id]
        if save:
            self.store(block)
        block.leaving = slab.saving
        self._free_list.add(block.nbytes, self._slabs.pop(block.id))

    def store(self, block: PoolBlock) -> None:
        """Begin to save a block, in a new backing store if it has none that can be written."""
        slab = self._slabs[block.id]
        if block.home is None or not block.home.writable:
            block.home = self._backing_stores.create(block.nbytes)
        earlier = slab.saving
        home = block.home
        if earlier is not None:
            earlier.wait_over()
        save = functools.partial(self._save_part, slab, slab.loading, home)
        starts = range(0, block.nbytes, PART_BYTES)
        parts = [functools.partial(save, start, min(start + PART_BYTES, block.nbytes)) for start in starts]
        with self._lock:
            slab.saving = block.saving = self._writers.submit(parts)

    def vacate(self, block: PoolBlock) -> None:
        """Release the backing store of a dead block once no pending save can still write to it."""
        release_store = functools.partial(_release_store, block.home, block.saving)
        if self._writers.idle:
            release_store()
        else:
            self._writers.submit([release_store])

    def drain(self) -> None:
        """Wait until no transfer is under way."""
        self._readers.drain()
        self._writers.drain()

    def close(self) -> None:
        """Return all memory to the system; unsaved contents are lost."""
        self._readers.close()
        self._writers.close()
        free_slabs = [slab for _, slab in self._free_list.clear()]
        for slab in [*self._slabs.values(), *self._retired, *free_slabs]:
            self._release(slab)
        self._slabs.clear()
        self._retired.clear()

    def _take_slab(self, nbytes: int) -> Slab:
        """Return a free slab, preferably an idle one, or a new one that is allocated once there is room."""
        spare = self._free_list.take(nbytes, _idle)
        if spare is not None:
            return spare
        self._retire_slabs(self._promised_bytes + nbytes - self._capacity_bytes)
        slab = Slab(nbytes)
        self._device_memory.promise(nbytes)
        slab.promised = True
        self._release_idle()
        if not self._retired:
            self._allocate(slab)
        self._promised_bytes += nbytes
        return slab

    def _retire_slabs(self, excess_bytes: int) -> None:
        """Retire free slabs, largest first, until ``excess_bytes`` are to be released."""
        for size, slab in self._free_list.trim(excess_bytes):
            self._retired.append(slab)
            self._promised_bytes -= size

    def _release_idle(self) -> None:
        for slab in [each for each in self._retired if each.idle or not each.exists_or_will]:
            self._release(slab)
        self._retired = [each for each in self._retired if each.promised]

    def _release(self, slab: Slab) -> None:
        with self._lock:
            memory, slab.memory, slab.view = slab.memory, None, None
            if memory is not None:
                self._allocated_bytes -= slab.nbytes
                self._device_memory.release(memory)
                del memory
            if slab.promised:
                self._device_memory.promise(-slab.nbytes)
            slab.promised = False

    def _allocate(self, slab: Slab) -> None:
        with self._lock:
            if slab.memory is None:
                slab.view, slab.memory = self._device_memory.allocate(slab.nbytes)
                self._allocated_bytes += slab.nbytes
                self.peak_allocated_bytes = max(self.peak_allocated_bytes, self._allocated_bytes)

    def _prepare(
        self,
        slab: Slab,
        loading: Transfer | None,
        saving: Transfer | None,
        waits: list[Transfer],
        retired: tuple[Slab, ...],
    ) -> None:
        """Wait for all that must end before ``slab`` takes new contents; raises the error of a failed save.

        ``slab.saving`` may already be the save of the new contents: only ``saving``, of the former ones, is
        cleared.
        """
        for wait in waits:
            wait.wait_or_repeat()
        if loading is not None:
            loading.wait_over()
        self._give_back(retired)
        self._allocate(slab)
        with self._lock:
            if slab.saving is saving:
                slab.saving = None

    def _give_back(self, retired: Iterable[Slab]) -> None:
        """Release slabs once their transfers are over; raises the error of a failed save."""
        for each in retired:
            if each.loading is not None:
                each.loading.wait_over()
            if each.saving is not None:
                each.saving.wait_or_repeat()
            self._release(each)

    def _load_parts(
        self, home: BackingStore | None, slab: Slab, prepare: _RunOnce
    ) -> list[Callable[[], int]]:
        if home is None:
            return [functools.partial(self._load_part, slab, None, prepare, 0, 0)]
        return [
            functools.partial(
                self._load_part, slab, home, prepare, start, min(start + PART_BYTES, slab.nbytes)
            )
            for start in range(0, slab.nbytes, PART_BYTES)
        ]

    def _load_part(
        self, slab: Slab, home: BackingStore | None, prepare: _RunOnce, start: int, stop: int
    ) -> int:
        prepare()
        return 0 if home is None else self._device_memory.load(home, slab.memory, start, stop)

    def _save_part(
        self, slab: Slab, loading: Transfer | None, home: BackingStore, start: int, stop: int
    ) -> int:
        """Save one part, after the load that may still be filling the slab."""
        if loading is not None:
            loading.wait()
        return self._device_memory.save(slab.memory, home, start, stop)


def _release_store(home: BackingStore | None, saving: Transfer | None) -> int:
    """Release the backing store after ``saving``, which is not tried again; a transfer of no bytes."""
    if saving is not None:
        saving.forget()
    if home is not None:
        home.release()
    return 0


def _idle(slab: Slab) -> bool:
    return slab.idle


@final
class _RunOnce:
    """Runs ``work`` at the first call; concurrent calls wait until it is done."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work: Callable[[], None] | None = work
        self._lock = threading.Lock()

    def __call__(self) -> None:
        if self._work is None:
            return
        with self._lock:
            if self._work is not None:
                self._work()
                self._work = None
