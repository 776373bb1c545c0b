"""A recorded trace as it would be with another number of steps under way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from accelera.trace import Kind, Trace


def records_releases(trace: Trace) -> bool:
    """Return whether a trace says itself when pins end."""
    return bool((trace.kind == Kind.RELEASE).any())


def with_lookahead(trace: Trace, lookahead: int) -> Trace:
    """Return ``trace`` with each step's releases, savings and frees ``lookahead`` steps later.

    That is the order in which the engine goes when so many further steps are admitted while one computes:
    the oldest retires before the next is admitted, and before an access of what it frees or a write to what
    it saves. A trace without releases is returned as it is.
    """
    if not records_releases(trace):
        return trace
    place = np.arange(len(trace), dtype=np.int64)
    accesses = np.flatnonzero(trace.is_access)
    steps = trace.step[accesses]
    next_step = np.searchsorted(steps, trace.step.astype(np.int64) + lookahead + 1)
    due = np.append(accesses, len(trace))[next_step]
    due = np.where(trace.is_access, place, np.minimum(due, _first_dependent(trace)))
    order = np.lexsort((place, trace.step, trace.is_access, due))
    return replace(
        trace,
        buffer=trace.buffer[order],
        kind=trace.kind[order],
        step=trace.step[order],
        stride=trace.stride[order],
        meta={**trace.meta, "window": lookahead + 1},
    )


def _first_dependent(trace: Trace) -> NDArray[np.int64]:
    """Return per event the first access after it that needs it or a later event to have happened.

    An access needs the frees of its buffer, and where it writes the savings too.
    """
    count = len(trace)
    order = np.argsort(trace.buffer, kind="stable")
    place, kind = np.arange(count)[order], trace.kind[order]
    needed = np.full(count, count, dtype=np.int64)
    for departure, dependent in ((Kind.FREE, trace.is_access), (Kind.SAVE, trace.kind == Kind.WRITE)):
        following = np.searchsorted(np.flatnonzero(dependent[order]), np.arange(count))
        candidates = np.append(np.flatnonzero(dependent[order]), count)[following]
        inside = np.minimum(candidates, count - 1)
        same = (candidates < count) & (trace.buffer[order][inside] == trace.buffer[order])
        chosen = same & (kind == departure)
        needed[place[chosen]] = place[inside[chosen]]
    earliest: NDArray[np.int64] = np.minimum.accumulate(needed[::-1])[::-1]
    return earliest
