"""How many bytes a trace holds at every moment, and what they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accelera.trace import Kind, Trace


@dataclass(frozen=True)
class Residency:
    """Which buffers are held when a trace is replayed with its frees and evictions."""

    trace: Trace
    curve: NDArray[np.int64]
    """Bytes held after each event, shape (events,)."""
    before: NDArray[np.bool_]
    """Whether each buffer is held before the first event, shape (buffers,)."""

    @property
    def peak_event(self) -> int:
        """Index of the first event after which most bytes are held."""
        return int(self.curve.argmax()) if len(self.curve) else 0

    @property
    def peak_bytes(self) -> int:
        """Most bytes held at once."""
        return int(self.curve.max(initial=0))

    def held(self, event: int) -> NDArray[np.int32]:
        """Return the buffers held after ``event``, the largest first."""
        trace = self.trace
        last = np.full(trace.buffer_count, -1, dtype=np.int64)
        np.maximum.at(last, trace.buffer[: event + 1], np.arange(event + 1))
        held = np.where(last < 0, self.before, trace.kind[last] < Kind.EVICT)
        held |= (last >= 0) & (trace.kind[last] == Kind.SAVE)
        found = np.flatnonzero(held)
        return found[np.argsort(-trace.size_bytes[found], kind="stable")].astype(np.int32)

    def bytes_by_role(self, event: int) -> dict[str, int]:
        """Return the bytes held after ``event`` by role, the most first; unknown roles as ``other``."""
        sums: dict[str, int] = {}
        for buffer in self.held(event).tolist():
            role = self.trace.roles[buffer] or "other"
            sums[role] = sums.get(role, 0) + int(self.trace.size_bytes[buffer])
        return dict(sorted(sums.items(), key=lambda item: -item[1]))


def residency(trace: Trace, before: NDArray[np.bool_] | None = None) -> Residency:
    """Replay a trace's frees and evictions.

    Parameters
    ----------
    before
        Which buffers are held from the start, shape (buffers,); by default those read before written.
    """
    firsts, previous = _previous_kinds(trace)
    if before is None:
        before = np.zeros(trace.buffer_count, dtype=np.bool_)
        before[trace.buffer[firsts]] = trace.kind[firsts] == Kind.READ
    gone = (Kind.EVICT, Kind.FREE)
    was_held = np.where(firsts, before[trace.buffer], ~np.isin(previous, gone))
    sizes = trace.size_bytes[trace.buffer]
    change = np.where(trace.is_access & ~was_held, sizes, 0)
    change = change - np.where(np.isin(trace.kind, gone) & was_held, sizes, 0)
    return Residency(trace, int(trace.size_bytes[before].sum()) + np.cumsum(change), before)


def _previous_kinds(trace: Trace) -> tuple[NDArray[np.bool_], NDArray[np.uint8]]:
    """Return per event whether it is its buffer's first, and the kind of the one before it."""
    order = np.argsort(trace.buffer, kind="stable")
    same = np.zeros(len(order), dtype=np.bool_)
    same[1:] = trace.buffer[order[1:]] == trace.buffer[order[:-1]]
    firsts, previous = np.empty(len(order), np.bool_), np.zeros(len(order), np.uint8)
    firsts[order] = ~same
    previous[order[1:]] = trace.kind[order[:-1]]
    return firsts, previous
