"""The books of streaming: a ledger of blocks, with a record of what happens, in a run and on paper alike."""

from __future__ import annotations

from typing import Any, Protocol, final

from accelera.memory import Ledger, PoolStats
from accelera.offload.block import Block
from accelera.policy import Knowledge, create_policy
from accelera.trace import Access, Kind, Recorder

ASKABLE = frozenset({"fifo", "loop", "lru", "mru"})
"""Policies that can be asked for a victim that then does not leave: others count it as a turn."""


class Memory(Protocol):
    """What the books of a run move: the bytes."""

    def here(self, block: Block) -> Any:
        """Return what holds the bytes of a resident block."""

    def arrive(self, block: Block, *, load: bool) -> Any:
        """Make an admitted block's bytes come, and return what will hold them."""

    def leave(self, block: Block, *, save: bool) -> None:
        """Let go of the bytes of a departing block, saved first if they must be."""

    def store(self, block: Block) -> None:
        """Save the bytes of a block that stays."""


@final
class Books:
    """Residency of blocks inside a hard capacity; without ``memory``, on paper only.

    ``policy`` is the name of one that knows nothing of the future: raises UnknownNameError, or ValueError for
    one that has to.
    """

    def __init__(
        self,
        capacity_bytes: int,
        policy: str,
        memory: Memory | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        known = Knowledge(capacity_bytes=capacity_bytes)
        self._ledger = Ledger(capacity_bytes, create_policy(policy, known))
        self._may_ask = policy in ASKABLE
        self._memory = memory
        self._recorder = recorder
        self._blocks: dict[int, Block] = {}

    @property
    def stats(self) -> PoolStats:
        """Hits, misses, evictions and peak so far."""
        return self._ledger.stats

    @property
    def capacity_bytes(self) -> int:
        """The hard capacity."""
        return self._ledger.capacity_bytes

    @property
    def room_bytes(self) -> int:
        """Bytes that nobody takes."""
        return self._ledger.capacity_bytes - self._ledger.resident_bytes

    @property
    def resident(self) -> list[Block]:
        """The blocks that are here."""
        return list(self._blocks.values())

    def __contains__(self, block: Block) -> bool:
        return block.id in self._blocks

    def fits(self, nbytes: int) -> bool:
        """Return whether everything evictable together makes room for ``nbytes``."""
        return self._ledger.fits(nbytes)

    def adds(self, block: Block) -> int:
        """Return the bytes by which a pin of ``block`` adds to what is pinned."""
        return block.nbytes if block.id not in self._blocks or self._ledger.evictable(block.id) else 0

    def pinned(self, block: Block) -> bool:
        """Return whether somebody holds ``block``."""
        return block.id in self._blocks and not self._ledger.evictable(block.id)

    def admit(self, block: Block, step: int, *, write: bool) -> Any:
        """Pin ``block`` and return what holds its bytes; ``write``: its contents are set anew.

        Raises BudgetExceededError when pinned blocks leave no room.
        """
        hit, _ = self._ledger.admit(block.id, block.nbytes, self._leave, write=write)
        found = None
        if not hit:
            self._blocks[block.id] = block
        if self._memory is not None:
            found = self._memory.here(block) if hit else self._arrive(block, write)
        if self._recorder is not None:
            self._record(block, step, Kind.WRITE if write else Kind.READ)
        return found

    def unpin(self, block: Block, step: int, op: str = "") -> None:
        """Drop one pin."""
        self._ledger.unpin(block.id)
        if self._recorder is not None:
            self._record(block, step, Kind.RELEASE, op)

    def free(self, block: Block, step: int) -> None:
        """Forget ``block``: its contents are needed no more, or are worthless."""
        if block.id in self._blocks:
            self._ledger.free(block.id)
            self._drop(block, save=False)
            self._record(block, step, Kind.FREE)

    def evict(self, nbytes: int, step: int) -> int:
        """Give up unpinned blocks until ``nbytes`` are given back or none is left; return the bytes."""
        given = 0
        while given < nbytes and (victim := self._next_to_leave()) is not None:
            block = self._blocks[victim]
            save = self._ledger.must_save(victim)
            self._ledger.give_up(victim)
            self._drop(block, save=save)
            self._record(block, step, Kind.EVICT)
            given += block.nbytes
        return given

    def save(self, block: Block, step: int) -> None:
        """Save ``block`` if it is here and dirty."""
        if block.id in self._blocks and self._ledger.must_save(block.id):
            self._ledger.save(block.id)
            if self._memory is not None:
                self._memory.store(block)
            self._record(block, step, Kind.SAVE)

    def save_ahead(self, nbytes: int, step: int) -> None:
        """Save those who are to leave next, so that ``nbytes`` could be had at once."""
        if not self._ledger.dirty_count or not self._may_ask:
            return
        passed: set[int] = set()
        room = self.room_bytes
        while room < nbytes and (victim := self._ledger.victim(besides=passed)) is not None:
            passed.add(victim)
            block = self._blocks[victim]
            self.save(block, step)
            room += block.nbytes

    def _next_to_leave(self) -> int | None:
        """Return the policy's victim; where asking would change it, the first who came and is not held."""
        if self._may_ask:
            return self._ledger.victim()
        return next((id for id in self._blocks if self._ledger.evictable(id)), None)

    def _arrive(self, block: Block, write: bool) -> Any:
        assert self._memory is not None, "only a run has bytes"
        try:
            return self._memory.arrive(block, load=not write)
        except BaseException:
            self._ledger.free(block.id)
            del self._blocks[block.id]
            raise

    def _leave(self, id: int) -> None:
        self._drop(self._blocks[id], save=self._ledger.must_save(id))

    def _drop(self, block: Block, *, save: bool) -> None:
        if self._memory is not None:
            self._memory.leave(block, save=save)
        del self._blocks[block.id]

    def _record(self, block: Block, step: int, kind: Kind, op: str = "") -> None:
        if self._recorder is not None:
            self._recorder.record(Access(block.id, block.nbytes, step, kind, op, block.role, name=block.name))
