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
    """Memory for one block at a time; it comes into being when earlier memory has been given back."""

    __slots__ = ("loading", "memory", "nbytes", "promised", "saving", "view")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.view: Any = None
        """Its bytes as those who use them see them."""
        self.memory: Any = None
        """The same as its place knows it."""
        self.promised = False
        """Whether its place counts it."""
        self.loading: Transfer | None = None
        self.saving: Transfer | None = None

    @property
    def idle(self) -> bool:
        """Whether it exists and no transfer uses it."""
        loading, saving = self.loading, self.saving
        return self.memory is not None and (not loading or loading.over) and (not saving or saving.done)

    @property
    def exists_or_will(self) -> bool:
        """Whether it exists, or a transfer that is not over may bring it into being."""
        return self.memory is not None or (self.loading is not None and not self.loading.over)

    def wait_loaded(self) -> Any:
        """Return the bytes once they are here; raise what hindered them."""
        loading = self.loading
        if loading is not None:
            loading.wait()
            self.loading = None
        assert self.memory is not None, "what is loaded exists"
        return self.view

    def wait_saved(self) -> None:
        """Return when these bytes are read no more; raise what hinders their saving even now."""
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
        self._place = place
        self._homes = homes
        self._readers = TransferThreads(readers, "accelera-read")
        self._writers = TransferThreads(1, "accelera-write")
        for movers in (self._readers, self._writers):
            weakref.finalize(self, movers.dismiss)
        self._slabs: dict[int, Slab] = {}
        self._spares: FreeList[Slab] = FreeList()
        self._parting: list[Slab] = []
        self._promised_bytes = 0
        self._allocated_bytes = 0
        self._lock = threading.Lock()

    @property
    def bytes_read(self) -> int:
        """Bytes that came from homes."""
        return self._readers.bytes_moved

    @property
    def bytes_written(self) -> int:
        """Bytes that went to homes."""
        return self._writers.bytes_moved

    @property
    def allocated_bytes(self) -> int:
        """Bytes of memory that exist now."""
        return self._allocated_bytes

    @property
    def settled(self) -> bool:
        """Whether no memory is being allocated or given back at this moment."""
        return not self._lock.locked()

    def limit(self, nbytes: int) -> None:
        """Let at most ``nbytes`` be allocated from now on; return when what exceeds that is given back.

        Memory that blocks have now is theirs.
        """
        self._capacity_bytes = nbytes
        self._part_with(self._promised_bytes - nbytes)
        self._give_back(self._parting)
        self._release_idle()

    def here(self, block: PoolBlock) -> Slab:
        """Return the memory of a resident block."""
        return self._slabs[block.id]

    def arrive(self, block: PoolBlock, *, load: bool) -> Slab:
        """Give an admitted block its memory and begin to load it, or leave its contents undefined."""
        slab = self._slabs[block.id] = self._take(block.nbytes)
        home = block.home if load else None
        leaving, block.leaving = block.leaving, None
        saving = slab.saving
        waits = [wait for wait in (saving, leaving) if wait is not None and not wait.done]
        if home is None and slab.idle and not self._parting:
            slab.loading = slab.saving = None
            return slab
        settling = _Once(
            functools.partial(self._settle, slab, slab.loading, saving, waits, tuple(self._parting))
        )
        slab.loading = self._readers.ask(self._loads(home, slab, settling))
        return slab

    def leave(self, block: PoolBlock, *, save: bool) -> None:
        """Take the memory of a departing block for others, saving its contents first if they must be."""
        slab = self._slabs[block.id]
        if save:
            self.store(block)
        block.leaving = slab.saving
        self._spares.keep(block.nbytes, self._slabs.pop(block.id))

    def store(self, block: PoolBlock) -> None:
        """Begin to save a block, in a home of its own if it has none that can be written."""
        slab = self._slabs[block.id]
        if block.home is None or not block.home.writable:
            block.home = self._homes.create(block.nbytes)
        earlier = slab.saving
        home = block.home
        if earlier is not None:
            earlier.wait_over()
        save = functools.partial(self._save, slab, slab.loading, home)
        starts = range(0, block.nbytes, PART_BYTES)
        parts = [functools.partial(save, start, min(start + PART_BYTES, block.nbytes)) for start in starts]
        with self._lock:
            slab.saving = block.saving = self._writers.ask(parts)

    def vacate(self, block: PoolBlock) -> None:
        """Give the room of a dead block back, as soon as no saving that was begun can still write to it."""
        leave_home = functools.partial(_leave_home, block.home, block.saving)
        if self._writers.idle:
            leave_home()
        else:
            self._writers.ask([leave_home])

    def drain(self) -> None:
        """Return when no transfer is under way."""
        self._readers.drain()
        self._writers.drain()

    def close(self) -> None:
        """Return all memory to the system; what is not saved is lost."""
        self._readers.close()
        self._writers.close()
        spares = [slab for _, slab in self._spares.clear()]
        for slab in [*self._slabs.values(), *self._parting, *spares]:
            self._release(slab)
        self._slabs.clear()
        self._parting.clear()

    def _take(self, nbytes: int) -> Slab:
        """Return a spare slab, preferably an idle one, or one that exists as soon as there is room."""
        spare = self._spares.take(nbytes, _idle)
        if spare is not None:
            return spare
        self._part_with(self._promised_bytes + nbytes - self._capacity_bytes)
        slab = Slab(nbytes)
        self._place.promise(nbytes)
        slab.promised = True
        self._release_idle()
        if not self._parting:
            self._exist(slab)
        self._promised_bytes += nbytes
        return slab

    def _part_with(self, excess_bytes: int) -> None:
        """Give up spare slabs, largest first, until ``excess_bytes`` are promised back."""
        for size, slab in self._spares.part_with(excess_bytes):
            self._parting.append(slab)
            self._promised_bytes -= size

    def _release_idle(self) -> None:
        for slab in [each for each in self._parting if each.idle or not each.exists_or_will]:
            self._release(slab)
        self._parting = [each for each in self._parting if each.promised]

    def _release(self, slab: Slab) -> None:
        with self._lock:
            memory, slab.memory, slab.view = slab.memory, None, None
            if memory is not None:
                self._allocated_bytes -= slab.nbytes
                self._place.release(memory)
                del memory
            if slab.promised:
                self._place.promise(-slab.nbytes)
            slab.promised = False

    def _exist(self, slab: Slab) -> None:
        with self._lock:
            if slab.memory is None:
                slab.view, slab.memory = self._place.allocate(slab.nbytes)
                self._allocated_bytes += slab.nbytes
                self.peak_allocated_bytes = max(self.peak_allocated_bytes, self._allocated_bytes)

    def _settle(
        self,
        slab: Slab,
        loading: Transfer | None,
        saving: Transfer | None,
        waits: list[Transfer],
        parting: tuple[Slab, ...],
    ) -> None:
        """Wait for what must be over before ``slab`` takes new contents; raise what hinders a saving.

        Its new contents may be on their way home already when its former ones, ``saving``, are there.
        """
        for wait in waits:
            wait.wait_or_repeat()
        if loading is not None:
            loading.wait_over()
        self._give_back(parting)
        self._exist(slab)
        with self._lock:
            if slab.saving is saving:
                slab.saving = None

    def _give_back(self, parting: Iterable[Slab]) -> None:
        """Release slabs as soon as their transfers are over; raise what hinders a saving."""
        for each in parting:
            if each.loading is not None:
                each.loading.wait_over()
            if each.saving is not None:
                each.saving.wait_or_repeat()
            self._release(each)

    def _loads(self, home: BackingStore | None, slab: Slab, settling: _Once) -> list[Callable[[], int]]:
        if home is None:
            return [functools.partial(self._load, slab, None, settling, 0, 0)]
        return [
            functools.partial(self._load, slab, home, settling, start, min(start + PART_BYTES, slab.nbytes))
            for start in range(0, slab.nbytes, PART_BYTES)
        ]

    def _load(self, slab: Slab, home: BackingStore | None, settling: _Once, start: int, stop: int) -> int:
        settling()
        return 0 if home is None else self._place.load(home, slab.memory, start, stop)

    def _save(self, slab: Slab, loading: Transfer | None, home: BackingStore, start: int, stop: int) -> int:
        """Save a part; what an expected use was to change may still be on its way here."""
        if loading is not None:
            loading.wait()
        return self._place.save(slab.memory, home, start, stop)


def _leave_home(home: BackingStore | None, saving: Transfer | None) -> int:
    """Let the saving not be repeated, and release the backing store; a transfer of no bytes."""
    if saving is not None:
        saving.forget()
    if home is not None:
        home.release()
    return 0


def _idle(slab: Slab) -> bool:
    return slab.idle


@final
class _Once:
    """Does something the first time it is called; others wait until it is done."""

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
