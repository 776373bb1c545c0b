"""Contract of an eviction policy, and what a policy may know before the first access."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from accelera.trace import Kind, Trace
from accelera.trace._internal import NEVER, next_uses

Column = TypeVar("Column", bound="np.ndarray[Any, Any]")


def once_per_trace(function: Callable[[Trace], Column]) -> Callable[[Trace], Column]:
    """Return ``function`` with a cache of its results, read-only, each as long as its trace lives."""
    results: WeakKeyDictionary[Trace, Column] = WeakKeyDictionary()

    @functools.wraps(function)
    def cached(trace: Trace) -> Column:
        if trace not in results:
            result = function(trace)
            result.setflags(write=False)
            results[trace] = result
        return results[trace]

    return cached


class EvictionPolicy(Protocol):
    """The order in which resident buffers are given up.

    Subclass it and define ``insert``, ``touch``, ``remove`` and ``victim``; the other methods do what
    suits most.
    """

    def miss(self, buffer: int, nbytes: int, time: int, write: bool) -> None:
        """Take note that absent ``buffer`` is wanted, before room is made for it.

        Policies with a memory of the departed (ARC, LIRS) look it up here.
        """
        return

    @abstractmethod
    def insert(self, buffer: int, nbytes: int, time: int, write: bool) -> None:
        """Take note that ``buffer`` became resident at access ``time``; ``write``: with new contents."""

    @abstractmethod
    def touch(self, buffer: int, time: int, write: bool) -> None:
        """Take note that resident ``buffer`` was accessed again at ``time``."""

    @abstractmethod
    def remove(self, buffer: int) -> None:
        """Forget ``buffer``, which is needed no more."""

    def evict(self, buffer: int) -> None:
        """Take note that ``buffer`` left although it may come back; the same as ``remove`` by default."""
        self.remove(buffer)

    @abstractmethod
    def victim(self, evictable: Callable[[int], bool]) -> int | None:
        """Return the resident buffer to give up first among those evictable, or None.

        It stays resident until ``evict``: a victim that cannot be saved is kept.
        """

    def dead(self, buffer: int) -> bool:
        """Return whether ``buffer`` is known not to be read again, so that it need not be written back."""
        return False


KEPT = NEVER - 1
"""Instead of a next read: none comes, but the buffer is alive at the end and holds a result."""


@dataclass(frozen=True, eq=False)
class Knowledge:
    """The future as far as it is known; times are indices of accesses."""

    capacity_bytes: int = 0
    """Bytes of the tier."""
    buffers: int = 0
    """Number of buffers; 0 when unknown."""
    next_use: NDArray[np.int32] | None = None
    """Per access, the time of the same buffer's next access, or ``NEVER``."""
    next_read: NDArray[np.int32] | None = None
    """Per access, the time of the next read of the same contents; ``NEVER`` when they are freed or
    overwritten before, ``KEPT`` when they are a result."""
    score: NDArray[np.float64] | None = None
    """Per access, how willingly its buffer is given up from then on: the highest goes first."""
    seed: int = 0
    """Seed of policies that choose at random."""
    trace: Trace | None = None
    """The trace, from which a score can be computed."""

    @classmethod
    def of(
        cls, trace: Trace, capacity_bytes: int, *, score: NDArray[np.float64] | None = None, seed: int = 0
    ) -> Knowledge:
        """Return what is known when the whole ``trace`` is."""
        reads = next_reads(trace)
        return cls(capacity_bytes, trace.buffer_count, trace.next_use, reads, score, seed, trace)

    @classmethod
    def of_sequence(cls, sequence: Sequence[int], capacity_bytes: int = 0) -> Knowledge:
        """Return what is known from the ids of all reads to come, nothing being freed or overwritten."""
        ids = np.asarray(sequence, dtype=np.int32)
        upcoming = next_uses(ids)
        reads = np.where(upcoming == NEVER, np.int32(KEPT), upcoming)
        return cls(capacity_bytes, int(ids.max(initial=-1)) + 1, upcoming, reads)


@once_per_trace
def next_reads(trace: Trace) -> NDArray[np.int32]:
    """Return per access the next read of the same contents, ``NEVER`` or ``KEPT``; shape (accesses,).

    Contents that are saved on request before they end count as ``KEPT``, not as ``NEVER``.
    """
    times = np.cumsum(trace.is_access) - 1
    matters = trace.is_access | (trace.kind == Kind.FREE)
    buffer, kind, time = trace.buffer[matters], trace.kind[matters], times[matters]
    order = np.argsort(buffer, kind="stable")
    following = np.full(len(order), KEPT, dtype=np.int32)
    here, after = order[:-1], order[1:]
    same = buffer[here] == buffer[after]
    read = np.where(kind[after] == Kind.READ, time[after], NEVER)
    following[here[same]] = read[same]
    accesses: NDArray[np.int32] = following[kind != Kind.FREE]
    accesses[(accesses == NEVER) & _saved_next(trace)] = KEPT
    return accesses


def _saved_next(trace: Trace) -> NDArray[np.bool_]:
    """Return per access whether the buffer is saved before anything else happens to its contents."""
    matters = trace.is_access | (trace.kind == Kind.FREE) | (trace.kind == Kind.SAVE)
    buffer, kind = trace.buffer[matters], trace.kind[matters]
    order = np.argsort(buffer, kind="stable")
    saved = np.zeros(len(order), dtype=np.bool_)
    here, after = order[:-1], order[1:]
    saved[here] = (buffer[here] == buffer[after]) & (kind[after] == Kind.SAVE)
    accesses: NDArray[np.bool_] = saved[kind <= Kind.WRITE]
    return accesses
