"""Search for advice: policies, look-aheads and capacities tried on a trace by simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accelera.errors import ArgumentError
from accelera.memory import Hierarchy
from accelera.policy._internal import needs
from accelera.simulator.advice import (
    PLAIN,
    WORTHWHILE,
    Advice,
    Depth,
    Offload,
    Ranked,
    Resident,
    ahead_words,
    memory_words,
    offload_words,
    resident_words,
    sentences,
)
from accelera.simulator.lower_bounds import lower_bound
from accelera.simulator.presets import capacity_of, hierarchy_of
from accelera.simulator.replay import simulate
from accelera.simulator.report import Report
from accelera.simulator.residency_lp import compulsory_reads
from accelera.simulator.sweeps import policy_names, sweep
from accelera.simulator.time_steps import TimeSteps
from accelera.trace import Kind, Occupancy, Trace
from accelera.trace._internal import stack_distances
from accelera.units import format_bytes


def records_releases(trace: Trace) -> bool:
    """Return whether a trace records when pins end."""
    return bool((trace.kind == Kind.RELEASE).any())


def with_lookahead(trace: Trace, lookahead: int) -> Trace:
    """Return ``trace`` with each step's releases, savings and frees ``lookahead`` steps later.

    That is the order in which the engine goes when ``lookahead`` further steps are admitted while one
    computes: the oldest retires before the next is admitted, and before an access of what it
    frees or a write to what it saves. A trace without releases is returned as it is.
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


def worth_keeping(trace: Trace, capacity_bytes: int, room_bytes: int) -> tuple[list[int], list[Resident]]:
    """Return the buffers to keep resident within ``room_bytes``, and the figures of each.

    They are buffers that LRU fetches again; the most often missed, which save the most bytes per byte of
    room, come first, of equals the smaller. A first fetch, or one after a free, cannot be saved.
    """
    needed = stack_distances(trace).needed_bytes
    reads = trace.kind[trace.is_access] == Kind.READ
    missed = reads & ~compulsory_reads(trace) & ((needed < 0) | (needed > capacity_bytes))
    misses = np.bincount(trace.accessed[missed], minlength=trace.buffer_count)
    order = np.lexsort((trace.size_bytes, -misses))
    kept: list[int] = []
    for buffer in order[misses[order] > 0].tolist():
        size = int(trace.size_bytes[buffer])
        if size <= room_bytes:
            kept.append(buffer)
            room_bytes -= size
    found = [
        Resident(
            trace.names[each],
            int(trace.size_bytes[each]),
            int(misses[each] * trace.size_bytes[each]),
        )
        for each in kept
    ]
    return kept, found


def moved_with_kept(trace: Trace, kept: list[int], capacity_bytes: int, policy: str) -> int:
    """Return the bytes ``policy`` moves when the buffers ``kept`` never leave, their own moves included."""
    chosen = np.zeros(trace.buffer_count, np.bool_)
    chosen[kept] = True
    room_bytes = int(trace.size_bytes[chosen].sum())
    rest, staying = _only(trace, ~chosen), _only(trace, chosen)
    moved = simulate(rest, capacity_bytes - room_bytes, policy).moved_bytes if len(rest) else 0
    return moved + simulate(staying, room_bytes, policy).moved_bytes


def _only(trace: Trace, chosen: NDArray[np.bool_]) -> Trace:
    """Return ``trace`` with the events of chosen buffers alone."""
    number = np.cumsum(chosen, dtype=np.int32) - 1
    rows, left = chosen[trace.buffer], np.flatnonzero(chosen).tolist()
    return replace(
        trace,
        buffer=number[trace.buffer[rows]].astype(np.int32),
        kind=trace.kind[rows],
        step=trace.step[rows],
        stride=trace.stride[rows],
        size_bytes=trace.size_bytes[chosen],
        names=tuple(trace.names[each] for each in left),
        roles=tuple(trace.roles[each] for each in left),
        dtypes=tuple(trace.dtypes[each] for each in left),
    )


LOOKAHEADS = (0, 1, 2, 4, 8, 16)
BOUNDED = 100_000
"""Accesses up to which the lower bound is worked out unasked: a second or two."""
_REFERENCE = "planner"
"""The policy with which look-aheads are compared first."""
_CAPACITIES = 16
_NEAR = 1.01
"""Times within one per cent count as equal, and the bytes decide."""


def advise(
    trace: Trace,
    budget: int | float | str | None = None,
    hierarchy: Hierarchy | str | None = None,
    *,
    policies: Sequence[str] | str | None = None,
    lookaheads: Sequence[int] = LOOKAHEADS,
    scores: Mapping[str, ArrayLike] | None = None,
    bound: bool | None = None,
    seed: int = 0,
) -> Advice:
    """Return what to do about ``trace`` in less memory than it needs.

    Policies are ranked by time, and by bytes where the times are within one per cent.

    Parameters
    ----------
    trace
        The accesses, in order.
    budget
        Bytes of the first tier, a size such as ``"512MiB"``, or a share of what is alive at the peak such as
        ``0.5`` or ``"50%"``. By default the capacity that the trace was recorded with, or the hierarchy's.
    hierarchy
        The tiers or a preset's name; by default two, joined at 25 GB/s.
    policies
        Names to try; all by default, without those that need a score they are not given.
    lookaheads
        How many steps ahead to try loading.
    scores
        Per policy that follows a score, one number per access.
    bound
        Whether to work out the least bytes any schedule moves; by default up to 100,000 accesses.
    seed
        Seed of policies that choose at random.

    Raises
    ------
    UnknownNameError
        No policy or hierarchy has this name.
    ValueError
        No budget is given or recorded, or an empty list of policies or look-aheads.
    """
    capacity = _capacity(trace, budget, hierarchy)
    whole = Hierarchy.of(capacity) if hierarchy is None else hierarchy_of(hierarchy)
    machine = whole.with_capacity(capacity)
    names = policy_names("advise", policies, dict(scores or {}))
    if not lookaheads:
        raise ArgumentError("[advise] no lookaheads are given; leave them out to try the usual ones")
    search = _AdviceSearch(trace, machine, dict(scores or {}), seed)
    ahead = sorted(set(lookaheads))
    first = _shortest_lookahead([search.report(_REFERENCE, each) for each in ahead]).lookahead
    best = _best_first([search.report(name, first) for name in names])[0].policy
    depths = [search.report(best, each) for each in ahead]
    deep = _shortest_lookahead(depths)
    reports = _best_first([search.report(name, deep.lookahead) for name in names])
    least = reports[0].lower_bound_bytes if _computes_bound(bound, trace) else None
    return _advice(search, capacity, reports, depths, deep.lookahead, least)


class _AdviceSearch:
    """Simulations of one trace in one machine, with any policy and look-ahead."""

    def __init__(self, trace: Trace, machine: Hierarchy, scores: Mapping[str, ArrayLike], seed: int) -> None:
        self.trace = trace
        self.machine = machine
        self.scores = scores
        self.seed = seed
        self._retimed: dict[int, Trace] = {}

    def report(self, policy: str, lookahead: int, *, recompute: bool = False) -> Report:
        """Return the report of ``simulate``, with the trace retimed for ``lookahead``."""
        if lookahead not in self._retimed:
            self._retimed[lookahead] = with_lookahead(self.trace, lookahead)
        return simulate(
            self._retimed[lookahead],
            self.machine,
            policy,
            lookahead=lookahead,
            recompute=recompute,
            score=self.scores.get(policy),
            seed=self.seed,
        )


def _advice(
    search: _AdviceSearch,
    capacity: int,
    reports: list[Report],
    depths: list[Report],
    lookahead: int,
    least: int | None,
) -> Advice:
    ranking = [_ranked(each, least) for each in reports]
    best = ranking[0]
    plain = _ranked(search.report(PLAIN, lookahead), least)
    causal = next((each for each in ranking if not each.needs_future), plain)
    offload = _offload(reports[0], search.report(best.policy, lookahead, recompute=True))
    trace, time_steps = search.trace, TimeSteps.of(search.trace)
    floor = time_steps.floor_bytes
    curve = sweep(trace, [best.policy], _CAPACITIES, search.machine, scores=search.scores, progress=False)
    kept, resident = worth_keeping(trace, capacity, max(capacity - time_steps.resident_bytes, 0))
    kept_bytes = moved_with_kept(trace, kept, capacity, PLAIN) if kept else plain.moved_bytes
    if kept_bytes >= plain.moved_bytes:
        resident, kept_bytes = [], plain.moved_bytes
    knee, ample = curve.knee(), Occupancy(trace).peak_bytes
    without_stalls = curve.smallest_without_stalls()
    tried = tuple(Depth(each.lookahead, each.stall_s, each.moved_bytes) for each in depths)
    words = [*sentences(best, plain, causal, least, capacity), ahead_words(tried, lookahead)]
    words += [memory_words(floor, knee, without_stalls, ample), offload_words(offload)]
    if resident:
        words.append(resident_words(sum(each.size_bytes for each in resident), kept_bytes, plain))
    if floor > capacity:
        words.insert(0, _too_small(floor, capacity))
    return Advice(
        policy=best.policy,
        causal_policy=causal.policy,
        lookahead=lookahead,
        capacity_bytes=capacity,
        floor_bytes=floor,
        ample_bytes=ample,
        knee_bytes=knee,
        without_stalls_bytes=without_stalls,
        lower_bound_bytes=least,
        ranking=tuple(ranking),
        depths=tried,
        resident=tuple(resident),
        resident_moved_bytes=kept_bytes,
        offload=offload,
        words=tuple(words),
    )


def _capacity(trace: Trace, budget: int | float | str | None, hierarchy: Hierarchy | str | None) -> int:
    if budget is not None:
        return capacity_of(budget, trace)
    if "capacity_bytes" in trace.meta:
        return int(trace.meta["capacity_bytes"])
    if hierarchy is not None:
        return hierarchy_of(hierarchy).tiers[0].capacity_bytes
    raise ArgumentError(
        "[advise] no budget: the trace does not say in how much memory it was recorded; give a size such "
        "as '512MiB', or a share of the peak such as '50%'"
    )


def _computes_bound(bound: bool | None, trace: Trace) -> bool:
    return trace.access_count <= BOUNDED if bound is None else bound


def _best_first(reports: list[Report]) -> list[Report]:
    """Return the reports, best first: those near the fastest by bytes, then the others by time."""
    fastest = min(each.total_s for each in reports)
    near = [each for each in reports if each.total_s <= fastest * _NEAR]
    others = [each for each in reports if each.total_s > fastest * _NEAR]
    return [
        *sorted(near, key=lambda each: (each.moved_bytes, each.total_s, _preference(each.policy))),
        *sorted(others, key=lambda each: (each.total_s, each.moved_bytes, _preference(each.policy))),
    ]


def _preference(policy: str) -> int:
    """Return the rank among equals: the plain policy first, then those that know the future."""
    return 0 if policy == PLAIN else 1 if _needs_future(policy) else 2


def _ranked(report: Report, least: int | None) -> Ranked:
    moved = report.moved_bytes
    regret = moved / least if least else 1.0 if least == 0 and not moved else None
    future = _needs_future(report.policy)
    return Ranked(report.policy, moved, report.stall_s, report.total_s, regret, future)


def _needs_future(policy: str) -> bool:
    return bool({"next_use", "next_read"} & set(needs(policy)))


def _shortest_lookahead(depths: list[Report]) -> Report:
    """Return the report of the shortest look-ahead that is about as quick as the quickest that fits."""
    fewest = min(each.oversized_steps for each in depths)
    fitting = [each for each in depths if each.oversized_steps == fewest]
    fastest = min(each.total_s for each in fitting)
    return next(each for each in fitting if each.total_s <= fastest * _NEAR)


def _offload(report: Report, recomputed: Report) -> Offload:
    link = report.links[0]
    busiest = max(link.towards_s, link.away_s)
    return Offload(report.compute_s, busiest, report.stall_s, recomputed.total_s)


def _too_small(floor: int, capacity: int) -> str:
    return (
        f"the operands of the largest step need {format_bytes(floor)}, more than {format_bytes(capacity)}: "
        "some of them pass by without staying"
    )


@dataclass(frozen=True)
class Gain:
    """Distance between a plain policy, the offline planner and the least possible; sizes in bytes."""

    capacity_bytes: int
    policy: str
    """The plain policy."""
    moved_bytes: int
    """What it moves."""
    planned_bytes: int
    """What the policy ``planner`` moves."""
    lower_bound_bytes: int
    """What any schedule moves at least."""

    @property
    def reachable(self) -> float:
        """Share of the traffic that the planner saves; negative where it moves more."""
        return 1 - self.planned_bytes / self.moved_bytes if self.moved_bytes else 0.0

    @property
    def possible(self) -> float:
        """Share of the traffic that no schedule can save more than."""
        return 1 - self.lower_bound_bytes / self.moved_bytes if self.moved_bytes else 0.0

    @property
    def worthwhile(self) -> bool:
        """Whether the planner saves 5 % or more."""
        return self.reachable >= WORTHWHILE

    def explain(self) -> str:
        """Return the verdict in words."""
        at = f"at {format_bytes(self.capacity_bytes)}"
        moves = f"{self.policy} moves {format_bytes(self.moved_bytes)}"
        if self.moved_bytes == self.lower_bound_bytes:
            return f"{at} {moves}, and no schedule moves less"
        least = f"no schedule moves less than {format_bytes(self.lower_bound_bytes)}"
        if self.worthwhile:
            return (
                f"{at} {moves}, the planner {format_bytes(self.planned_bytes)} ({self.reachable:.0%} less); "
                f"{least}"
            )
        if self.possible < WORTHWHILE:
            advice = "more memory, a smaller batch or recomputation would help"
            return f"{at} no policy helps: {moves}, {least} ({self.possible:.1%} less); {advice}"
        planned = f"the planner {format_bytes(self.planned_bytes)}"
        return f"{at} the planner does not help: {moves}, {planned}; {least}"


def gain(trace: Trace, capacity_bytes: int, policy: str = "lru") -> Gain:
    """Return how much less than ``policy`` a better one could move for ``trace`` at this capacity.

    Stacks of activations are read in the reverse order of their making, and there plain policies are often
    within a few percent of the bound: ``Gain.worthwhile`` and ``Gain.explain`` say so.

    Parameters
    ----------
    trace
        The accesses, in order.
    capacity_bytes
        Bytes of the first tier.
    policy
        Name of the policy to improve on.

    Raises
    ------
    UnknownNameError
        A name that there is not.
    ValueError
        For a negative capacity.
    """
    moved = simulate(trace, capacity_bytes, policy).moved_bytes
    planned = simulate(trace, capacity_bytes, "planner").moved_bytes
    return Gain(capacity_bytes, policy, moved, planned, lower_bound(trace, capacity_bytes))
