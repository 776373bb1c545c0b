"""What a policy may know before the first access."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accelera.policy.memo import once_per_trace
from accelera.trace import NEVER, Kind, Trace, next_uses

KEPT = NEVER - 1
"""Instead of a next read: none comes, but the buffer is alive at the end and holds a result."""


@dataclass(frozen=True, eq=False)
class Knowledge:
    """The future as far as it is known; times are indices of accesses."""

    capacity_bytes: int = 0
    """Bytes of the tier."""
    buffers: int = 0
    """How many buffers there are; 0 when unknown."""
    next_use: NDArray[np.int32] | None = None
    """Per access, the time of the same buffer's next access, or ``NEVER``."""
    next_read: NDArray[np.int32] | None = None
    """Per access, the time of the next read of the same contents; ``NEVER`` when they are freed or set anew
    before, ``KEPT`` when they are a result."""
    score: NDArray[np.float64] | None = None
    """Per access, how willingly its buffer is given up from then on: the highest goes first."""
    seed: int = 0
    """For policies that throw dice."""
    trace: Trace | None = None
    """Where a score can be worked out from."""

    @classmethod
    def of(
        cls, trace: Trace, capacity_bytes: int, *, score: NDArray[np.float64] | None = None, seed: int = 0
    ) -> Knowledge:
        """Return what is known when the whole ``trace`` is."""
        reads = next_reads(trace)
        return cls(capacity_bytes, trace.buffer_count, trace.next_use, reads, score, seed, trace)

    @classmethod
    def of_sequence(cls, sequence: Sequence[int], capacity_bytes: int = 0) -> Knowledge:
        """Return what is known from the ids of all reads to come, nothing being freed or set anew."""
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
