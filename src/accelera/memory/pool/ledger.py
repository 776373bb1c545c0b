"""Ledger of a pool: which buffers are resident, pinned and dirty, and their sizes, without the bytes.

The buffer pool counts here during a run, and the planner counts with the same class in a forecast, so
that predicted and real hits, misses, evictions and peak agree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from accelera.errors import BudgetExceededError
from accelera.policy import EvictionPolicy
from accelera.units import format_bytes

_BEFORE = -1
"""Time of accesses before those that a policy knows of."""


@dataclass
class PoolStats:
    """Counters of one ledger; bytes are buffer bytes in the pool's tier."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    """Evictions chosen by the policy."""
    miss_bytes: int = 0
    """Bytes of all misses."""
    fetched_bytes: int = 0
    """Bytes of the misses that read, and so had to be loaded; the other misses wrote new contents."""
    evicted_bytes: int = 0
    """Bytes of all evictions."""
    saved_bytes: int = 0
    """Bytes written to the next tier: dirty buffers, evicted or saved on request."""
    peak_bytes: int = 0


class Ledger:
    """Residency of buffers inside a hard capacity.

    Accesses arrive in order; each admits its buffer, evicting unpinned ones by the policy until it
    fits. Nothing is ever admitted beyond the capacity.
    """

    def __init__(self, capacity_bytes: int, policy: EvictionPolicy) -> None:
        self.capacity_bytes = capacity_bytes
        self.resident_bytes = 0
        self.stats = PoolStats()
        self._policy = policy
        self._size: dict[int, int] = {}
        self._pins: dict[int, int] = {}
        self._pinned_bytes = 0
        self._dirty: set[int] = set()
        self._clock = 0

    def __contains__(self, buffer: int) -> bool:
        return buffer in self._size

    def renew(self, policy: EvictionPolicy) -> None:
        """Use ``policy`` from now on: its clock starts at 0, and all resident buffers are inserted first."""
        self._policy = policy
        self._clock = 0
        for buffer, nbytes in self._size.items():
            policy.insert(buffer, nbytes, _BEFORE, True)

    def admit(
        self,
        buffer: int,
        nbytes: int,
        leave: Callable[[int], None] = lambda buffer: None,
        *,
        write: bool = False,
    ) -> tuple[bool, list[int]]:
        """Pin ``buffer``; return whether it was resident, and the buffers evicted for it.

        ``leave`` is called with each victim before it is removed, and keeps it resident by raising;
        ``write`` says that the contents are overwritten, which makes the buffer dirty.
        Raises BudgetExceededError, with nothing evicted and no access counted, when all evictable
        buffers together do not make room.
        """
        if buffer in self._size:
            self.stats.hits += 1
            self._policy.touch(buffer, self._tick(), write)
            self._hold(buffer, write)
            return True, []
        displaced = self._make_room(buffer, nbytes, leave, write)
        self.stats.misses += 1
        self.stats.miss_bytes += nbytes
        self.stats.fetched_bytes += 0 if write else nbytes
        self._size[buffer] = nbytes
        self._policy.insert(buffer, nbytes, self._tick(), write)
        self._hold(buffer, write)
        self.resident_bytes += nbytes
        self.stats.peak_bytes = max(self.stats.peak_bytes, self.resident_bytes)
        return False, displaced

    def hold(self, buffer: int) -> None:
        """Pin resident ``buffer`` once more, without counting an access."""
        self._pins[buffer] = self._pins.get(buffer, 0) + 1
        if self._pins[buffer] == 1:
            self._pinned_bytes += self._size[buffer]

    def unpin(self, buffer: int) -> None:
        """Drop one pin of ``buffer``; without pins it may be evicted."""
        self._pins[buffer] -= 1
        if not self._pins[buffer]:
            del self._pins[buffer]
            self._pinned_bytes -= self._size[buffer]

    def free(self, buffer: int) -> None:
        """Remove ``buffer``, pinned or not: no longer needed, so it counts as neither eviction nor save."""
        self._policy.remove(buffer)
        self._forget(buffer)

    def save(self, buffer: int) -> None:
        """Mark ``buffer`` clean: it is written to the next tier."""
        if buffer in self._dirty:
            self.stats.saved_bytes += self._size[buffer]
            self._dirty.remove(buffer)

    def unsave(self, buffer: int) -> None:
        """Undo ``save`` after a failed write: ``buffer`` is dirty again."""
        self.stats.saved_bytes -= self._size[buffer]
        self._dirty.add(buffer)

    def give_up(self, buffer: int) -> None:
        """Remove unpinned ``buffer`` on request: saved if dirty, not counted among the policy's evictions."""
        if self.must_save(buffer):
            self.save(buffer)
        self.free(buffer)

    def must_save(self, buffer: int) -> bool:
        """Return whether ``buffer`` must be saved before it leaves: it is dirty, and not known to be dead."""
        return buffer in self._dirty and not self._policy.dead(buffer)

    def evictable(self, buffer: int) -> bool:
        """Return whether ``buffer`` is not pinned."""
        return buffer not in self._pins

    def fits(self, nbytes: int) -> bool:
        """Return whether everything evictable together makes room for ``nbytes``."""
        return self._pinned_bytes + nbytes <= self.capacity_bytes

    @property
    def dirty_count(self) -> int:
        """Number of dirty buffers."""
        return len(self._dirty)

    def victim(self) -> int | None:
        """Return the unpinned buffer that the policy would evict first, or None."""
        return self._policy.victim(self.evictable)

    def next_victims(self, nbytes: int) -> list[int]:
        """Return the policy's next victims, in its order, until they come to ``nbytes`` or more.

        The policy must call its filter in that order.
        """
        found: list[int] = []

        def is_last(buffer: int) -> bool:
            nonlocal nbytes
            if buffer not in self._pins:
                found.append(buffer)
                nbytes -= self._size[buffer]
            return nbytes <= 0

        if nbytes > 0:
            self._policy.victim(is_last)
        return found

    def _hold(self, buffer: int, write: bool) -> None:
        self.hold(buffer)
        if write:
            self._dirty.add(buffer)

    def _forget(self, buffer: int) -> None:
        nbytes = self._size.pop(buffer)
        self.resident_bytes -= nbytes
        if self._pins.pop(buffer, 0):
            self._pinned_bytes -= nbytes
        self._dirty.discard(buffer)

    def _tick(self) -> int:
        """Return the index of the present access and move on."""
        self._clock += 1
        return self._clock - 1

    def _make_room(self, incoming: int, nbytes: int, leave: Callable[[int], None], write: bool) -> list[int]:
        if self._pinned_bytes + nbytes > self.capacity_bytes:
            self._refuse(nbytes)
        self._policy.miss(incoming, nbytes, self._clock, write)
        displaced = []
        while self.resident_bytes + nbytes > self.capacity_bytes:
            buffer = self._policy.victim(self.evictable)
            assert buffer is not None, "unpinned buffers remain, so a policy must name one"
            leave(buffer)
            self._evict(buffer)
            displaced.append(buffer)
        return displaced

    def _evict(self, buffer: int) -> None:
        self.stats.evictions += 1
        self.stats.evicted_bytes += self._size[buffer]
        if self.must_save(buffer):
            self.save(buffer)
        self._policy.evict(buffer)
        self._forget(buffer)

    def _refuse(self, nbytes: int) -> None:
        needed = self._pinned_bytes + nbytes
        raise BudgetExceededError(
            f"[pool] a buffer of {format_bytes(nbytes)} does not fit: {format_bytes(self._pinned_bytes)} of "
            f"{format_bytes(self.capacity_bytes)} are pinned; unpin buffers or raise the capacity to "
            f"{format_bytes(needed)}",
            needed_bytes=needed,
            budget_bytes=self.capacity_bytes,
        )
