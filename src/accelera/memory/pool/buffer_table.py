"""Buffer table of a pool: a ledger of buffers that records every event, in a run and in a forecast."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar, final

from accelera.memory.pool.ledger import Ledger, PoolStats
from accelera.policy import EvictionPolicy, Knowledge, create_policy
from accelera.trace import Kind
from accelera.trace._internal import Access, Recorder

PREVIEWABLE = frozenset({"fifo", "loop", "lru", "mru"})
"""Policies whose next victims can be asked for without changing their state."""


class PoolEntry(Protocol):
    """A buffer as the table sees it."""

    id: int
    nbytes: int
    role: str
    """What the bytes are, one of the roles of a trace."""
    dtype: str
    name: str


E = TypeVar("E", bound=PoolEntry)
E_contra = TypeVar("E_contra", bound=PoolEntry, contravariant=True)


class PoolMemory(Protocol[E_contra]):
    """The memory behind a table: allocates, loads and saves the bytes of its buffers."""

    def here(self, entry: E_contra, /) -> Any:
        """Return the memory of a resident buffer."""

    def arrive(self, entry: E_contra, /, *, load: bool) -> Any:
        """Allocate the memory of an admitted buffer and return it; with ``load`` begin to fill it."""

    def leave(self, entry: E_contra, /, *, save: bool) -> None:
        """Free the memory of a departing buffer, with ``save`` once it is saved; it stays if this raises."""

    def store(self, entry: E_contra, /) -> None:
        """Save a buffer that stays resident."""


@final
class BufferTable(Generic[E]):
    """Residency of buffers inside a hard capacity.

    Parameters
    ----------
    capacity_bytes
        The hard capacity.
    policy
        The eviction policy; or the name of one that needs no knowledge of the future. Raises
        UnknownNameError for an unknown name, ValueError for a policy that needs such knowledge.
    memory
        Allocates and moves the bytes; None: the table only counts, as in a forecast.
    recorder
        Is told of every event.
    op
        Name of the operation, for events that name none.
    """

    def __init__(
        self,
        capacity_bytes: int,
        policy: EvictionPolicy | str,
        memory: PoolMemory[E] | None = None,
        recorder: Recorder | None = None,
        *,
        op: str = "",
    ) -> None:
        self.memory = memory
        self._can_preview = isinstance(policy, str) and policy in PREVIEWABLE
        if isinstance(policy, str):
            policy = create_policy(policy, Knowledge(capacity_bytes=capacity_bytes))
        self._ledger = Ledger(capacity_bytes, policy)
        self._recorder = recorder
        self._op = op
        self._entries: dict[int, E] = {}

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
        """Bytes of all resident buffers."""
        return self._ledger.resident_bytes

    @property
    def room_bytes(self) -> int:
        """Bytes that are free."""
        return self._ledger.capacity_bytes - self._ledger.resident_bytes

    @property
    def resident(self) -> list[E]:
        """All resident buffers."""
        return list(self._entries.values())

    def __contains__(self, entry: E) -> bool:
        return entry.id in self._entries

    def __getitem__(self, id: int) -> E:
        """Return the resident under ``id``; raises KeyError when there is none."""
        return self._entries[id]

    def find(self, id: int) -> E | None:
        """Return the resident under ``id``, or None."""
        return self._entries.get(id)

    def fits(self, nbytes: int) -> bool:
        """Return whether everything evictable together makes room for ``nbytes``."""
        return self._ledger.fits(nbytes)

    def adds(self, entry: E) -> int:
        """Return the bytes that pinning ``entry`` adds to the pinned bytes: 0 when it is pinned already."""
        return entry.nbytes if entry.id not in self._entries or self._ledger.evictable(entry.id) else 0

    def renew(self, policy: EvictionPolicy) -> None:
        """Use ``policy`` from now on; it knows the accesses to come."""
        self._ledger.renew(policy)

    def pinned(self, entry: E) -> bool:
        """Return whether ``entry`` is pinned."""
        return entry.id in self._entries and not self._ledger.evictable(entry.id)

    def must_save(self, entry: E) -> bool:
        """Return whether resident ``entry`` must be saved before it is evicted."""
        return self._ledger.must_save(entry.id)

    def admit(self, entry: E, step: int, *, write: bool) -> Any:
        """Pin ``entry`` and return its memory; ``write``: its contents are overwritten.

        Raises BudgetExceededError when the pinned buffers leave no room.
        """
        hit, _ = self._ledger.admit(entry.id, entry.nbytes, self._leave, write=write)
        found = None
        if not hit:
            self._entries[entry.id] = entry
        if self.memory is not None:
            found = self.memory.here(entry) if hit else self._arrive(self.memory, entry, write)
        if self._recorder is not None:
            self._record(entry, step, Kind.WRITE if write else Kind.READ)
        return found

    def unpin(self, entry: E, step: int, op: str = "") -> None:
        """Drop one pin."""
        self._ledger.unpin(entry.id)
        if self._recorder is not None:
            self._record(entry, step, Kind.RELEASE, op)

    def free(self, entry: E, step: int) -> None:
        """Free ``entry``, pinned or not: its contents are no longer needed."""
        if entry.id in self._entries:
            self._ledger.free(entry.id)
            self._remove(entry, save=False)
            self._record(entry, step, Kind.FREE)

    def give_up(self, entry: E, step: int) -> None:
        """Evict resident, unpinned ``entry`` now; it stays if it cannot be saved."""
        self._leave(entry.id)
        self._ledger.give_up(entry.id)
        self._record(entry, step, Kind.EVICT)

    def evict(self, nbytes: int, step: int) -> int:
        """Evict unpinned buffers until ``nbytes`` are freed or none is left; return the bytes freed."""
        freed_bytes = 0
        while freed_bytes < nbytes and (victim := self._next_victim()) is not None:
            entry = self._entries[victim]
            self.give_up(entry, step)
            freed_bytes += entry.nbytes
        return freed_bytes

    def save(self, entry: E, step: int) -> None:
        """Save ``entry`` if it is resident and dirty; a pinned one stays dirty, as it may be changing now."""
        if entry.id not in self._entries or not self._ledger.must_save(entry.id):
            return
        held = self.pinned(entry)
        self.begin_save(entry)
        saved = False
        try:
            if self.memory is not None:
                self.memory.store(entry)
            saved = not held
        finally:
            self.end_save(entry, step, saved=saved)

    def begin_save(self, entry: E) -> None:
        """Pin ``entry`` while its present contents are saved; later writes make it dirty again."""
        self._ledger.hold(entry.id)
        self._ledger.save(entry.id)

    def end_save(self, entry: E, step: int, *, saved: bool) -> None:
        """Drop the pin of ``begin_save``; where the save failed (not ``saved``), the entry is dirty again."""
        if saved:
            self._record(entry, step, Kind.SAVE)
        else:
            self._ledger.unsave(entry.id)
        self._ledger.unpin(entry.id)

    def note_saved(self, entry: E, step: int) -> None:
        """Note that the caller has saved ``entry``."""
        self._ledger.save(entry.id)
        self._record(entry, step, Kind.SAVE)

    def save_ahead(self, nbytes: int, step: int) -> None:
        """Save the next victims, so that ``nbytes`` can be freed at once."""
        if not self._ledger.dirty_count or not self._can_preview:
            return
        for victim in self._ledger.next_victims(nbytes - self.room_bytes):
            self.save(self._entries[victim], step)

    def _next_victim(self) -> int | None:
        """Return the policy's next victim; if asking would change its state, the oldest unpinned one."""
        if self._can_preview:
            return self._ledger.victim()
        return next((id for id in self._entries if self._ledger.evictable(id)), None)

    def _arrive(self, memory: PoolMemory[E], entry: E, write: bool) -> Any:
        """Allocate and load ``entry``; if that raises, it is not resident."""
        try:
            return memory.arrive(entry, load=not write)
        except BaseException:
            self._ledger.free(entry.id)
            del self._entries[entry.id]
            raise

    def _leave(self, id: int) -> None:
        self._remove(self._entries[id], save=self._ledger.must_save(id))

    def _remove(self, entry: E, *, save: bool) -> None:
        if self.memory is not None:
            self.memory.leave(entry, save=save)
        del self._entries[entry.id]

    def _record(self, entry: E, step: int, kind: Kind, op: str = "") -> None:
        if self._recorder is not None:
            name = op or self._op
            self._recorder.record(
                Access(entry.id, entry.nbytes, step, kind, name, entry.role, entry.dtype, entry.name)
            )
