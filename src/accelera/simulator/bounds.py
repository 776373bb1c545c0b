"""The least bytes that any schedule could move, and the plan that comes near it.

The rules are those of ``simulate`` with two tiers: buffers are dropped or kept whole, at any time, by a
schedule that knows the future; the operands of a step are in the first tier together. Counted are fetches
and write-backs between the first tier and the next. Recomputing instead of moving is outside the bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from accelera.simulator.flow import kept_bytes, least_flow
from accelera.simulator.moments import Moments
from accelera.simulator.stays import Stays, stays_of
from accelera.trace import Trace

WINDOW_STAYS = 60_000
"""Longer traces are cut into windows of so many stays: a few seconds each."""


@dataclass(frozen=True, eq=False)
class ResidencyPlan:
    """Contents of the first tier under an all-knowing schedule."""

    capacity_bytes: int
    lower_bound_bytes: int
    """No schedule moves fewer bytes between the first tier and the next."""
    compulsory_bytes: int
    """Of these, what is moved at any capacity: first reads, and what is saved on request."""
    proven_bytes: float
    """The bound before it is rounded up to what whole buffers add up to."""
    slope: float
    """How many bytes fewer must be moved for one more byte of capacity, with a minus."""
    dropped: NDArray[np.float64] = field(repr=False)
    """Per access, the share of its buffer that is dropped until its next one, 0 to 1, shape (accesses,):
    a ``score`` for the policy ``planner``."""


def lower_bound(trace: Trace, capacity_bytes: int) -> int:
    """Return the least bytes that any schedule of residency moves for ``trace``, in its order of steps.

    A linear program, solved by HiGHS: a second or so for 60,000 accesses. Traces of more than about
    100,000 are bounded window by window, which costs some sharpness and keeps the time in proportion.

    Parameters
    ----------
    trace
        The accesses, in order.
    capacity_bytes
        Bytes of the first tier. Where a step alone exceeds it, or what a record has pinned together, that
        step bounds nothing.

    Raises
    ------
    ValueError
        For a negative capacity.
    """
    return plan_residency(trace, capacity_bytes).lower_bound_bytes


def plan_residency(trace: Trace, capacity_bytes: int) -> ResidencyPlan:
    """Return the lower bound with the plan behind it; see ``lower_bound``.

    Parameters
    ----------
    trace
        The accesses, in order.
    capacity_bytes
        Bytes of the first tier.
    """
    if capacity_bytes < 0:
        raise ValueError(f"[lower_bound] capacity_bytes={capacity_bytes} must not be negative")
    moments = Moments.of(trace)
    stays = stays_of(trace, moments)
    streams = np.maximum(moments.held_bytes, moments.pinned_bytes) > capacity_bytes
    room = np.where(streams, capacity_bytes, capacity_bytes - moments.held_bytes)
    dropped = np.zeros(trace.access_count)
    moved = slope = 0.0
    for begin, end, part in _windows(stays, room):
        flow = least_flow(part, room[begin:end])
        moved, slope = moved + flow.moved_bytes, slope + flow.slope
        np.maximum.at(dropped, part.access, flow.dropped)
    moved = max(moved, 0.0) * (1 - 1e-9)
    least = stays.fixed_bytes + _next_multiple(moved, trace)
    return ResidencyPlan(capacity_bytes, least, stays.fixed_bytes, stays.fixed_bytes + moved, slope, dropped)


def _next_multiple(moved: float, trace: Trace) -> int:
    """Return ``moved`` bytes rounded up to what whole buffers can add up to."""
    unit = int(np.gcd.reduce(trace.size_bytes)) if trace.buffer_count else 0
    return unit * math.ceil(moved / unit - 1e-6) if unit else 0


def _windows(stays: Stays, room: NDArray[np.int64]) -> Iterator[tuple[int, int, Stays]]:
    """Yield windows of moments with the stays in them, whose costs are shared out by pressure."""
    count = -(-len(stays) // WINDOW_STAYS)
    if count <= 1:
        yield 0, len(room), stays
        return
    edges = np.quantile(stays.begin, np.linspace(0, 1, count + 1)).astype(np.int64)
    edges[0], edges[-1] = 0, len(room)
    pressure = np.maximum(kept_bytes(stays, len(room)) - room, 1.0)
    until = np.append(0.0, np.cumsum(pressure))
    total = until[stays.end] - until[stays.begin]
    version_total = np.bincount(stays.version, total)
    for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        begin, end = np.clip(stays.begin, first, last), np.clip(stays.end, first, last)
        part = until[end] - until[begin]
        version_part = np.bincount(stays.version, part)
        shared = replace(
            stays,
            begin=begin - first,
            end=end - first,
            fetch=stays.fetch * part / total,
            write=stays.write * (version_part / np.maximum(version_total, 1.0))[stays.version],
        )
        yield first, last, shared.where(begin < end)
