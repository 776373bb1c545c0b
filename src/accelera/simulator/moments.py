"""When buffers are held together: the points of a trace at which a schedule has no choice."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accelera.trace import Kind, Trace


@dataclass(frozen=True, eq=False)
class Moments:
    """A trace as a sequence of moments; all operands of one moment are in the first tier together.

    A moment is a step, or a part of one where a buffer is let go before the step's last access.
    """

    of_access: NDArray[np.int64]
    """Moment per access, shape (accesses,); never falls."""
    held_bytes: NDArray[np.int64]
    """Bytes accessed per moment, each buffer counted once, shape (moments,)."""

    @classmethod
    def of(cls, trace: Trace) -> Moments:
        """Return the moments of ``trace``."""
        of_access = np.cumsum(_begins(trace)) - 1
        count = int(of_access[-1]) + 1 if len(of_access) else 0
        pairs = np.unique(of_access * trace.buffer_count + trace.accessed)
        moment, buffer = np.divmod(pairs, max(trace.buffer_count, 1))
        held = np.zeros(count, dtype=np.int64)
        np.add.at(held, moment, trace.size_bytes[buffer])
        return cls(of_access.astype(np.int64), held)

    def __len__(self) -> int:
        return len(self.held_bytes)

    @property
    def floor_bytes(self) -> int:
        """The smallest capacity in which every step's operands fit together."""
        return int(self.held_bytes.max(initial=0))


def _begins(trace: Trace) -> NDArray[np.bool_]:
    """Return per access whether a moment begins with it."""
    positions = np.flatnonzero(trace.is_access)
    steps = trace.step[positions]
    begins = np.ones(len(positions), dtype=np.bool_)
    begins[1:] = steps[1:] != steps[:-1]
    for kind in (Kind.RELEASE, Kind.EVICT, Kind.FREE):
        gone = np.flatnonzero(trace.kind == kind)
        following = np.searchsorted(positions, gone)
        within = following < len(positions)
        gone, following = gone[within], following[within]
        begins[following] |= _step_of_last_access(trace, gone) == steps[following]
    return begins


def _step_of_last_access(trace: Trace, events: NDArray[np.intp]) -> NDArray[np.int64]:
    """Return per event the step of its buffer's last access before, -1 without one."""
    last = np.where(trace.is_access, np.arange(len(trace)), -1)
    order = np.argsort(trace.buffer, kind="stable")
    buffers, sorted_last = trace.buffer[order].astype(np.int64), last[order]
    offset = buffers * (len(trace) + 1)
    latest = np.empty(len(trace), dtype=np.int64)
    latest[order] = np.maximum.accumulate(offset + sorted_last) - offset
    found = latest[events]
    return np.where(found >= 0, trace.step[np.maximum(found, 0)], -1)
