"""Time steps of a trace for schedules: the points at which buffers are in memory together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accelera.trace import Kind, Trace

Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TimeSteps:
    """A trace as a sequence of time steps; all operands of one time step are in the first tier together.

    A time step is a step, or a part of one: of a trace that records its releases, up to where a buffer is let
    go; of another, up to an access of a buffer that was freed in the same step, or a write to one that was
    saved in it.
    """

    of_access: Integers
    """Time step per access, shape (accesses,); never falls."""
    held_bytes: Integers
    """Bytes accessed per time step, each buffer counted once, shape (time steps,)."""
    pinned_bytes: Integers
    """The most bytes held by the steps under way, shape (time steps,). With less room than this the replay of
    a trace that records its releases streams operands, and holds them together no more."""

    @classmethod
    def of(cls, trace: Trace) -> TimeSteps:
        """Return the time steps of ``trace``."""
        recorded = bool((trace.kind == Kind.RELEASE).any())
        begins = _after_releases(trace) if recorded else _after_cuts(trace)
        of_access = np.cumsum(begins) - 1
        count = int(of_access[-1]) + 1 if len(of_access) else 0
        pairs = np.unique(of_access * trace.buffer_count + trace.accessed)
        time_step, buffer = np.divmod(pairs, max(trace.buffer_count, 1))
        held = np.zeros(count, dtype=np.int64)
        np.add.at(held, time_step, trace.size_bytes[buffer])
        pinned = held
        if recorded:
            pinned = np.zeros(count, dtype=np.int64)
            np.maximum.at(pinned, of_access, _pinned_bytes(trace)[trace.is_access])
        return cls(of_access.astype(np.int64), held, pinned)

    def __len__(self) -> int:
        return len(self.held_bytes)

    @property
    def floor_bytes(self) -> int:
        """The smallest capacity in which every step's operands fit together."""
        return int(self.held_bytes.max(initial=0))

    @property
    def resident_bytes(self) -> int:
        """The smallest capacity in which nothing is streamed; more than the floor only of a record."""
        return int(np.maximum(self.held_bytes, self.pinned_bytes).max(initial=0))


def _new_steps(trace: Trace) -> tuple[NDArray[np.intp], NDArray[np.int32], NDArray[np.bool_]]:
    """Return the event and the step of each access, and whether a step begins with it."""
    positions = np.flatnonzero(trace.is_access)
    steps = trace.step[positions]
    begins = np.ones(len(positions), dtype=np.bool_)
    begins[1:] = steps[1:] != steps[:-1]
    return positions, steps, begins


def _after_releases(trace: Trace) -> NDArray[np.bool_]:
    """Return per access of a record whether a time step begins with it."""
    positions, steps, begins = _new_steps(trace)
    for kind in (Kind.RELEASE, Kind.EVICT, Kind.FREE):
        gone = np.flatnonzero(trace.kind == kind)
        following = np.searchsorted(positions, gone)
        within = following < len(positions)
        gone, following = gone[within], following[within]
        accessed = _latest(trace, trace.is_access)[gone]
        step = np.where(accessed >= 0, trace.step[np.maximum(accessed, 0)], -1)
        begins[following] |= step == steps[following]
    return begins


def _after_cuts(trace: Trace) -> NDArray[np.bool_]:
    """Return per access whether a time step begins with it, where pins end with the steps.

    One begins within a step where an access needs what the step itself does to the buffer before: the
    replay retires the step so far there.
    """
    positions, _, begins = _new_steps(trace)
    if trace.is_access.all():
        return begins
    needed = _latest(trace, trace.kind == Kind.FREE)[positions]
    saved = _latest(trace, trace.kind == Kind.SAVE)[positions]
    needed = np.where(trace.kind[positions] == Kind.WRITE, np.maximum(needed, saved), needed)
    first = np.maximum.accumulate(np.where(begins, positions, 0))
    cut = -1
    for access in np.flatnonzero(needed > first).tolist():
        if needed[access] > cut:
            cut = int(positions[access])
            begins[access] = True
    return begins


def _latest(trace: Trace, chosen: NDArray[np.bool_]) -> Integers:
    """Return per event the last chosen one of the same buffer up to it, -1 without one."""
    order = np.argsort(trace.buffer, kind="stable")
    offset = trace.buffer[order].astype(np.int64) * (len(trace) + 1)
    latest = np.empty(len(trace), dtype=np.int64)
    found = np.where(chosen, np.arange(len(trace)), -1)[order]
    latest[order] = np.maximum.accumulate(offset + found) - offset
    return latest


def _pinned_bytes(trace: Trace) -> Integers:
    """Return per event of a record the bytes pinned after it: accesses pin, releases and frees let go."""
    order = np.argsort(trace.buffer, kind="stable")
    kind, buffer = trace.kind[order], trace.buffer[order]
    fresh = np.ones(len(order), dtype=np.bool_)
    fresh[1:] = (buffer[1:] != buffer[:-1]) | (kind[:-1] == Kind.FREE)
    change = (kind <= Kind.WRITE).astype(np.int64) - (kind == Kind.RELEASE)
    life = np.cumsum(fresh) - 1
    pins = np.cumsum(change)
    before = (pins - change)[fresh][life]
    # A release of what is not held does nothing: the pins are those above their lowest point so far.
    offset = life * (2 * len(order) + 2)
    lowest = np.minimum.accumulate(np.minimum(pins, before) - before - offset) + offset
    held = (pins - before - lowest > 0) & (kind != Kind.FREE)
    was_held = np.zeros(len(order), dtype=np.bool_)
    was_held[1:] = held[:-1] & (buffer[1:] == buffer[:-1])
    bytes_change = np.zeros(len(order), dtype=np.int64)
    bytes_change[order] = (held.astype(np.int64) - was_held) * trace.size_bytes[buffer]
    pinned: Integers = np.cumsum(bytes_change)
    return pinned
