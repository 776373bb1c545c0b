"""Occupancy: the bytes alive after each event, and the tensors that they belong to."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from accelera.trace.access import Kind
from accelera.trace.trace import Trace


class LiveTensor(NamedTuple):
    """A buffer that is alive at some moment."""

    name: str
    role: str
    size_bytes: int


class OpWorkingSet(NamedTuple):
    """The distinct buffers that one step accesses, together."""

    size_bytes: int
    step: int
    op: str


@dataclass(frozen=True, eq=False)
class Occupancy:
    """The bytes that are alive, event by event.

    A buffer that is written before it is read begins there; any other is there from the start. It ends when
    it is freed, and is there again at its next access; without a free it stays to the end.
    """

    trace: Trace
    evictions: bool = False
    """Whether an eviction ends a life too: the bytes that the first tier holds, instead of those alive."""
    before: NDArray[np.bool_] | None = None
    """Which buffers are there before the first event, shape (buffers,); None: those not written first."""

    @cached_property
    def changes(self) -> NDArray[np.int64]:
        """Lives begun (1) and ended (-1) by each event, shape (events,)."""
        rows, begins = self._lives
        ends = self._is_end[rows]
        there = self.at_start[self.trace.buffer[rows]]
        there[~begins] = ~ends[:-1][~begins[1:]]
        found = np.zeros(len(self.trace), np.int64)
        found[rows] = np.where(ends, -1, 1) * (ends == there)
        return found

    @cached_property
    def at_start(self) -> NDArray[np.bool_]:
        """Whether each buffer is there from the start, shape (buffers,)."""
        if self.before is not None:
            return self.before
        rows, begins = self._lives
        found = np.ones(self.trace.buffer_count, np.bool_)
        found[self.trace.buffer[rows[begins]]] = self.trace.kind[rows[begins]] != Kind.WRITE
        return found

    @cached_property
    def _is_end(self) -> NDArray[np.bool_]:
        ends: NDArray[np.bool_] = self.trace.kind == Kind.FREE
        return ends | (self.trace.kind == Kind.EVICT) if self.evictions else ends

    @cached_property
    def _lives(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The accesses and ends, buffer by buffer in order, and whether each is its buffer's first."""
        trace = self.trace
        events = np.flatnonzero(trace.is_access | self._is_end)
        rows = events[np.argsort(trace.buffer[events], kind="stable")]
        return rows, np.diff(trace.buffer[rows], prepend=-1) != 0

    @cached_property
    def live_bytes(self) -> NDArray[np.int64]:
        """The bytes alive after each event, shape (events,)."""
        return self.after_events()

    def after_events(self, role: str | None = None) -> NDArray[np.int64]:
        """Return the live bytes after each event, of all buffers or those of one role; shape (events,)."""
        every = np.ones(self.trace.buffer_count, np.bool_)
        return self.bytes_of(every if role is None else np.array(self.trace.roles) == role)

    def bytes_of(self, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the live bytes of the chosen buffers after each event, shape (events,)."""
        sizes = np.where(chosen, self.trace.size_bytes, 0)
        begin = int(sizes[self.at_start].sum())
        found: NDArray[np.int64] = begin + np.cumsum(self.changes * sizes[self.trace.buffer])
        return found

    @cached_property
    def fullest_events(self) -> NDArray[np.int64]:
        """Per step, the event in it after which the most bytes are alive; shape (steps,).

        A step without events has the last event before it, or -1.
        """
        live = self.live_bytes
        steps = np.maximum.accumulate(self.trace.step) if len(live) else self.trace.step
        order = np.lexsort((live, steps))
        ends = np.flatnonzero(np.diff(steps[order], append=-1))
        found = np.full(self.trace.step_count, -1)
        found[steps[order[ends]]] = order[ends]
        last = np.searchsorted(steps, np.arange(self.trace.step_count), side="right") - 1
        return np.where(found < 0, last, found)

    def per_step(self, role: str | None = None) -> NDArray[np.int64]:
        """Return the bytes alive when each step is fullest, of all buffers or one role; shape (steps,)."""
        live = self.after_events(role)
        begin = 0 if not len(live) else live[0] - self._first_change(role)
        return np.where(self.fullest_events < 0, begin, live[self.fullest_events] if len(live) else 0)

    def _first_change(self, role: str | None) -> int:
        buffer = int(self.trace.buffer[0])
        counted = role is None or self.trace.roles[buffer] == role
        return int(self.changes[0] * self.trace.size_bytes[buffer]) * counted

    @cached_property
    def peak_event(self) -> int:
        """The first event after which the most bytes are alive; -1 when that is before all events."""
        live = self.live_bytes
        return int(np.argmax(live)) if live.max(initial=0) >= self._start_bytes and len(live) else -1

    @property
    def peak_bytes(self) -> int:
        """The most bytes alive at any time."""
        return int(self.live_bytes.max(initial=self._start_bytes))

    @property
    def _start_bytes(self) -> int:
        return int(self.trace.size_bytes[self.at_start].sum())

    def alive_after(self, event: int) -> NDArray[np.bool_]:
        """Return whether each buffer is alive after ``event``, -1 for the start; shape (buffers,)."""
        until = slice(0, event + 1)
        lives = np.bincount(self.trace.buffer[until], self.changes[until], self.trace.buffer_count)
        return (lives + self.at_start) > 0

    @cached_property
    def alive_at_peak(self) -> NDArray[np.bool_]:
        """Whether each buffer is alive at the peak, shape (buffers,)."""
        return self.alive_after(self.peak_event)

    @property
    def largest_at_peak(self) -> NDArray[np.intp]:
        """The buffers alive at the peak, the largest first."""
        alive = np.flatnonzero(self.alive_at_peak)
        return alive[np.argsort(-self.trace.size_bytes[alive], kind="stable")]

    def peak_by_role(self) -> dict[str, int]:
        """Return the bytes alive at the peak by role, largest first."""
        roles, index = np.unique(np.array(self.trace.roles, dtype=str), return_inverse=True)
        sums = np.bincount(index, self.trace.size_bytes * self.alive_at_peak, len(roles)).astype(np.int64)
        order = np.argsort(-sums, kind="stable")
        return {str(roles[i]): int(sums[i]) for i in order if sums[i]}

    def top_live(self, count: int = 10) -> list[LiveTensor]:
        """Return the ``count`` largest buffers alive at the peak, largest first."""
        trace, largest = self.trace, self.largest_at_peak[:count]
        return [LiveTensor(trace.names[i], trace.roles[i], int(trace.size_bytes[i])) for i in largest]


def working_sets(trace: Trace, windows: int) -> NDArray[np.int64]:
    """Return the bytes of the distinct buffers accessed in each of ``windows`` equal runs of steps.

    Parameters
    ----------
    trace
        The accesses, in order.
    windows
        How many runs of steps.
    """
    width = max(trace.step_count, 1)
    window = trace.step[trace.is_access].astype(np.int64) * windows // width
    return _distinct_bytes(trace, window, windows)


def largest_op(trace: Trace) -> OpWorkingSet:
    """Return the step that accesses the most distinct bytes: no tier smaller than that can hold it.

    Parameters
    ----------
    trace
        The accesses, in order.
    """
    sums = _distinct_bytes(trace, trace.step[trace.is_access].astype(np.int64), trace.step_count)
    if not len(sums):
        return OpWorkingSet(0, 0, "")
    step = int(np.argmax(sums))
    return OpWorkingSet(int(sums[step]), step, trace.ops[step])


def _distinct_bytes(trace: Trace, group: NDArray[np.int64], groups: int) -> NDArray[np.int64]:
    pairs = np.sort(group * max(trace.buffer_count, 1) + trace.accessed)
    distinct = pairs[np.diff(pairs, prepend=-1) != 0]
    of, buffer = np.divmod(distinct, max(trace.buffer_count, 1))
    return np.bincount(of, trace.size_bytes[buffer], groups).astype(np.int64)
