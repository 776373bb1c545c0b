"""The books of a run: a ledger whose buffers have bytes, loaded from their homes and saved to them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import final

from accelera.memory import Ledger, PoolStats
from accelera.offload.block import Block
from accelera.offload.homes import Homes
from accelera.offload.places import Place, Slab
from accelera.policy import EvictionPolicy
from accelera.trace import Access, Kind, Recorder


@final
class Residence:
    """Blocks in the memory of a place, inside a hard capacity."""

    def __init__(
        self,
        capacity_bytes: int,
        policy: EvictionPolicy,
        place: Place,
        homes: Homes,
        recorder: Recorder | None = None,
    ) -> None:
        self.bytes_read = 0
        self.bytes_written = 0
        self._ledger = Ledger(capacity_bytes, policy)
        self._place = place
        self._homes = homes
        self._recorder = recorder
        self._slabs: dict[int, Slab] = {}
        self._blocks: dict[int, Block] = {}
        self._spare: dict[int, list[Slab]] = defaultdict(list)
        self._allocated_bytes = 0

    @property
    def stats(self) -> PoolStats:
        """Hits, misses, evictions and peak so far."""
        return self._ledger.stats

    @property
    def resident_bytes(self) -> int:
        """Bytes of the blocks that are resident now."""
        return self._ledger.resident_bytes

    def admit(self, block: Block, step: int, *, write: bool) -> Slab:
        """Pin ``block`` and return its memory; ``write``: its contents are set anew.

        Raises BudgetExceededError when pinned blocks leave no room.
        """
        hit, _ = self._ledger.admit(block.id, block.nbytes, self._leave, write=write)
        if not hit:
            slab = self._slabs[block.id] = self._take(block.nbytes)
            self._blocks[block.id] = block
            if not write and block.home is not None:
                self.bytes_read += self._place.load(block.home, slab)
        self._record(block, step, Kind.WRITE if write else Kind.READ)
        return self._slabs[block.id]

    def unpin(self, block: Block, step: int, op: str = "") -> None:
        """Drop one pin."""
        self._ledger.unpin(block.id)
        self._record(block, step, Kind.RELEASE, op)

    def free(self, block: Block, step: int) -> None:
        """End a block's life: its contents are needed no more, neither here nor at home."""
        if block.id in self._ledger:
            self._ledger.free(block.id)
            self._keep(block.id)
            self._record(block, step, Kind.FREE)
        if block.home is not None:
            block.home.release()
            block.home = None

    def evict(self, nbytes: int, step: int) -> int:
        """Give up unpinned blocks until ``nbytes`` are given back, or none is left; return the bytes."""
        given = 0
        while given < nbytes:
            victim = self._ledger.victim()
            if victim is None:
                break
            block = self._blocks[victim]
            self._leave(victim)
            self._ledger.give_up(victim)
            self._record(block, step, Kind.EVICT)
            given += block.nbytes
        return given

    def save(self, block: Block, step: int) -> None:
        """Write ``block`` home if it is here and dirty."""
        if block.id in self._ledger and self._ledger.must_save(block.id):
            self._store(block.id)
            self._ledger.save(block.id)
            self._record(block, step, Kind.SAVE)

    def blocks(self) -> Iterable[Block]:
        """Return the resident blocks."""
        return list(self._blocks.values())

    def close(self) -> None:
        """Return all memory to the system."""
        for id in list(self._slabs):
            self._keep(id)
        self._trim(self._allocated_bytes)

    def _leave(self, id: int) -> None:
        if self._ledger.must_save(id):
            self._store(id)
        self._keep(id)

    def _store(self, id: int) -> None:
        block = self._blocks[id]
        if block.home is None or not block.home.writable:
            block.home = self._homes.create(block.nbytes)
        self.bytes_written += self._place.save(self._slabs[id], block.home)

    def _take(self, nbytes: int) -> Slab:
        if self._spare[nbytes]:
            return self._spare[nbytes].pop()
        self._trim(self._allocated_bytes + nbytes - self._ledger.capacity_bytes)
        self._allocated_bytes += nbytes
        return self._place.allocate(nbytes)

    def _keep(self, id: int) -> None:
        self._blocks.pop(id)
        slab = self._slabs.pop(id)
        self._spare[slab.nbytes].append(slab)

    def _trim(self, excess_bytes: int) -> None:
        for size in sorted(self._spare, reverse=True):
            while self._spare[size] and excess_bytes > 0:
                self._place.release(self._spare[size].pop())
                self._allocated_bytes -= size
                excess_bytes -= size

    def _record(self, block: Block, step: int, kind: Kind, op: str = "") -> None:
        if self._recorder is not None:
            self._recorder.record(Access(block.id, block.nbytes, step, kind, op, block.role, name=block.name))
