"""Buffer table of a pool: a ledger of buffers, with a record of every event, in a run and on paper alike."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar, final

from accelera.memory.pool.ledger import Ledger, PoolStats
from accelera.policy import EvictionPolicy, Knowledge, create_policy
from accelera.trace import Access, Kind, Recorder

ASKABLE = frozenset({"fifo", "loop", "lru", "mru"})
"""Policies that can be asked for a victim that then does not leave: others count it as a turn."""


class PoolEntry(Protocol):
    """What the books know of a buffer."""

    id: int
    nbytes: int
    role: str
    """What the bytes are, one of ``accelera.trace.ROLES``."""
    dtype: str
    name: str


E = TypeVar("E", bound=PoolEntry)
E_contra = TypeVar("E_contra", bound=PoolEntry, contravariant=True)


class PoolMemory(Protocol[E_contra]):
    """Bytes behind the books of a run: loaded, saved and allocated."""

    def here(self, entry: E_contra, /) -> Any:
        """Return what holds the bytes of a resident."""

    def arrive(self, entry: E_contra, /, *, load: bool) -> Any:
        """Make the bytes of a newcomer come, and return what will hold them."""

    def leave(self, entry: E_contra, /, *, save: bool) -> None:
        """Let go of the bytes of one that departs, saved first if they must be; it stays if this raises."""

    def store(self, entry: E_contra, /) -> None:
        """Save the bytes of one that stays."""


@final
class BufferTable(Generic[E]):
    """Residency of buffers inside a hard capacity.

    Parameters
    ----------
    capacity_bytes
        The hard capacity.
    policy
        The policy that evicts; or the name of one that knows nothing of the future: UnknownNameError where
        there is none, ValueError for one that has to know.
    memory
        What moves the bytes; None means on paper only.
    recorder
        Hears of every event.
    op
        Name of the operation, for events that come without.
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
        self._may_ask = isinstance(policy, str) and policy in ASKABLE
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
        """Bytes of those that are here."""
        return self._ledger.resident_bytes

    @property
    def room_bytes(self) -> int:
        """Bytes that are free."""
        return self._ledger.capacity_bytes - self._ledger.resident_bytes

    @property
    def resident(self) -> list[E]:
        """Those that are here."""
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
        """Return the bytes by which a pin of ``entry`` adds to what is pinned."""
        return entry.nbytes if entry.id not in self._entries or self._ledger.evictable(entry.id) else 0

    def renew(self, policy: EvictionPolicy) -> None:
        """Follow ``policy`` from now on, which knows what comes next."""
        self._ledger.renew(policy)

    def pinned(self, entry: E) -> bool:
        """Return whether ``entry`` is pinned."""
        return entry.id in self._entries and not self._ledger.evictable(entry.id)

    def must_save(self, entry: E) -> bool:
        """Return whether ``entry``, which is here, cannot leave unsaved."""
        return self._ledger.must_save(entry.id)

    def admit(self, entry: E, step: int, *, write: bool) -> Any:
        """Pin ``entry`` and return what holds its bytes; ``write``: its contents are overwritten.

        Raises BudgetExceededError when those pinned leave no room.
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
        """Forget ``entry``, pinned or not: its contents are needed no more, or are worthless."""
        if entry.id in self._entries:
            self._ledger.free(entry.id)
            self._drop(entry, save=False)
            self._record(entry, step, Kind.FREE)

    def give_up(self, entry: E, step: int) -> None:
        """Make ``entry``, which is here and not pinned, leave now; it stays if it cannot be saved."""
        self._leave(entry.id)
        self._ledger.give_up(entry.id)
        self._record(entry, step, Kind.EVICT)

    def evict(self, nbytes: int, step: int) -> int:
        """Give up unpinned ones until ``nbytes`` are given back or none is left; return the bytes."""
        given = 0
        while given < nbytes and (victim := self._next_to_leave()) is not None:
            entry = self._entries[victim]
            self.give_up(entry, step)
            given += entry.nbytes
        return given

    def save(self, entry: E, step: int) -> None:
        """Save ``entry`` if it is here and dirty; one that is held stays dirty, as it may be changing now."""
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
        """Hold ``entry`` while its contents of now are saved; later writes make it dirty again."""
        self._ledger.hold(entry.id)
        self._ledger.save(entry.id)

    def end_save(self, entry: E, step: int, *, saved: bool) -> None:
        """Let go of what ``begin_save`` held; if it was not ``saved`` after all, it is as it was before."""
        if saved:
            self._record(entry, step, Kind.SAVE)
        else:
            self._ledger.unsave(entry.id)
        self._ledger.unpin(entry.id)

    def note_saved(self, entry: E, step: int) -> None:
        """Take note that the caller has saved ``entry``."""
        self._ledger.save(entry.id)
        self._record(entry, step, Kind.SAVE)

    def save_ahead(self, nbytes: int, step: int) -> None:
        """Save those who are to leave next, so that ``nbytes`` could be had at once."""
        if not self._ledger.dirty_count or not self._may_ask:
            return
        for victim in self._ledger.next_victims(nbytes - self.room_bytes):
            self.save(self._entries[victim], step)

    def _next_to_leave(self) -> int | None:
        """Return the policy's victim; where asking would change it, the first who came and is not held."""
        if self._may_ask:
            return self._ledger.victim()
        return next((id for id in self._entries if self._ledger.evictable(id)), None)

    def _arrive(self, memory: PoolMemory[E], entry: E, write: bool) -> Any:
        """Make the bytes of ``entry`` come; if that fails, it was never here."""
        try:
            return memory.arrive(entry, load=not write)
        except BaseException:
            self._ledger.free(entry.id)
            del self._entries[entry.id]
            raise

    def _leave(self, id: int) -> None:
        self._drop(self._entries[id], save=self._ledger.must_save(id))

    def _drop(self, entry: E, *, save: bool) -> None:
        if self.memory is not None:
            self.memory.leave(entry, save=save)
        del self._entries[entry.id]

    def _record(self, entry: E, step: int, kind: Kind, op: str = "") -> None:
        if self._recorder is not None:
            name = op or self._op
            self._recorder.record(
                Access(entry.id, entry.nbytes, step, kind, name, entry.role, entry.dtype, entry.name)
            )
