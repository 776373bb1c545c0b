"""Lower bound on the bytes that any schedule moves, and the residency plan that comes near it.

The rules are those of ``simulate`` with two tiers: buffers are dropped or kept whole, at any time, by a
schedule that knows the future; the operands of a step are in the first tier together. Counted are fetches
and write-backs between the first tier and the next. Recomputing instead of moving is outside the bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from accelera.errors import ArgumentError
from accelera.simulator.residency_lp import ReuseIntervals, kept_bytes, least_flow, reuse_intervals
from accelera.simulator.time_steps import TimeSteps
from accelera.trace import Trace

WINDOW_INTERVALS = 60_000
"""Longer traces are cut into windows of so many intervals: a few seconds each."""


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
        raise ArgumentError(f"[lower_bound] capacity_bytes={capacity_bytes} must not be negative")
    time_steps = TimeSteps.of(trace)
    intervals = reuse_intervals(trace, time_steps)
    streams = np.maximum(time_steps.held_bytes, time_steps.pinned_bytes) > capacity_bytes
    room = np.where(streams, capacity_bytes, capacity_bytes - time_steps.held_bytes)
    dropped = np.zeros(trace.access_count)
    moved = slope = 0.0
    for begin, end, part in _windows(intervals, room):
        flow = least_flow(part, room[begin:end])
        moved, slope = moved + flow.moved_bytes, slope + flow.slope
        np.maximum.at(dropped, part.access, flow.dropped)
    moved = max(moved, 0.0) * (1 - 1e-9)
    least = intervals.fixed_bytes + _next_multiple(moved, trace)
    return ResidencyPlan(
        capacity_bytes, least, intervals.fixed_bytes, intervals.fixed_bytes + moved, slope, dropped
    )


def _next_multiple(moved: float, trace: Trace) -> int:
    """Return ``moved`` bytes rounded up to what whole buffers can add up to."""
    unit = int(np.gcd.reduce(trace.size_bytes)) if trace.buffer_count else 0
    return unit * math.ceil(moved / unit - 1e-6) if unit else 0


def _windows(intervals: ReuseIntervals, room: NDArray[np.int64]) -> Iterator[tuple[int, int, ReuseIntervals]]:
    """Yield windows of time steps with the intervals in them, whose costs are shared out by pressure."""
    count = -(-len(intervals) // WINDOW_INTERVALS)
    if count <= 1:
        yield 0, len(room), intervals
        return
    edges = np.quantile(intervals.begin, np.linspace(0, 1, count + 1)).astype(np.int64)
    edges[0], edges[-1] = 0, len(room)
    pressure = np.maximum(kept_bytes(intervals, len(room)) - room, 1.0)
    until = np.append(0.0, np.cumsum(pressure))
    total = until[intervals.end] - until[intervals.begin]
    version_total = np.bincount(intervals.version, total)
    for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        begin, end = np.clip(intervals.begin, first, last), np.clip(intervals.end, first, last)
        part = until[end] - until[begin]
        version_part = np.bincount(intervals.version, part)
        shared = replace(
            intervals,
            begin=begin - first,
            end=end - first,
            fetch=intervals.fetch * part / total,
            write=intervals.write * (version_part / np.maximum(version_total, 1.0))[intervals.version],
        )
        yield first, last, shared.where(begin < end)


def bound_curve(
    trace: Trace, capacities: Sequence[int], *, tolerance: float = 0.02, most_solved: int = 8
) -> NDArray[np.int64]:
    """Return a lower bound in bytes at each capacity, shape (capacities,).

    Parameters
    ----------
    trace
        The accesses, in order.
    capacities
        Bytes of the first tier, one or more.
    tolerance
        Share of the sharpest bound that may be given away at a capacity to save time.
    most_solved
        Capacities above the floor that are solved at most, whatever the tolerance.
    """
    floor = TimeSteps.of(trace).resident_bytes
    solved = {each: plan_residency(trace, each) for each in capacities if each < floor}
    above = np.array(sorted({each for each in capacities if each >= floor}), dtype=np.int64)
    bounds = {each: plan.lower_bound_bytes for each, plan in solved.items()}
    bounds.update(zip(above.tolist(), _convex(trace, above, tolerance, most_solved).tolist(), strict=True))
    return np.array([bounds[each] for each in capacities], dtype=np.int64)


def _convex(
    trace: Trace, capacities: NDArray[np.int64], tolerance: float, most_solved: int
) -> NDArray[np.int64]:
    plans: dict[int, ResidencyPlan] = {}
    wanted = [0, len(capacities) - 1] if len(capacities) else []
    proven = np.zeros(len(capacities), dtype=np.int64)
    while wanted and len(plans) < most_solved:
        for index in wanted:
            plans[index] = plan_residency(trace, int(capacities[index]))
        proven = _tangents(plans, capacities)
        chord = _chord(plans, capacities)
        given_away = (chord - proven) / np.maximum(chord, 1.0)
        given_away[list(plans)] = 0.0
        wanted = [int(np.argmax(given_away))] if given_away.max() > tolerance else []
    return proven


def _tangents(plans: dict[int, ResidencyPlan], capacities: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the highest tangent at each capacity, and the bound itself where it is solved."""
    found = np.zeros(len(capacities), dtype=np.int64)
    for plan in plans.values():
        tangent = plan.proven_bytes + plan.slope * (capacities - plan.capacity_bytes)
        found = np.maximum(found, np.maximum(tangent, plan.compulsory_bytes).astype(np.int64))
    for index, plan in plans.items():
        found[index] = plan.lower_bound_bytes
    return found


def _chord(plans: dict[int, ResidencyPlan], capacities: NDArray[np.int64]) -> NDArray[np.float64]:
    known = sorted(plans)
    chord: NDArray[np.float64] = np.interp(
        capacities, capacities[known], [plans[index].lower_bound_bytes for index in known]
    )
    return chord
