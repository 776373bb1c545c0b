"""Try policies, look-aheads and capacities on a trace, and say what is best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from numpy.typing import ArrayLike

from accelera.errors import UnknownNameError
from accelera.memory import Hierarchy
from accelera.policy import POLICIES, needs
from accelera.settings import parse_share
from accelera.simulator.advice import Advice
from accelera.simulator.advice_parts import Depth, Offload, Ranked
from accelera.simulator.advice_resident import moved_with_kept, worth_keeping
from accelera.simulator.advice_text import (
    PLAIN,
    ahead_words,
    memory_words,
    offload_words,
    resident_words,
    sentences,
)
from accelera.simulator.advice_window import with_lookahead
from accelera.simulator.moments import Moments
from accelera.simulator.presets import hierarchy_of
from accelera.simulator.replay import simulate
from accelera.simulator.report import Report
from accelera.simulator.sweeps import sweep
from accelera.trace import Occupancy, Trace
from accelera.units import format_bytes

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
    policies: Sequence[str] | None = None,
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
        For policies that throw dice.

    Raises
    ------
    UnknownNameError
        No policy or hierarchy has this name.
    ValueError
        No budget is given or recorded, or an empty list of policies or look-aheads.
    """
    capacity = _capacity(trace, budget, hierarchy)
    machine = hierarchy_of(capacity if hierarchy is None else hierarchy).with_capacity(capacity)
    names = _names(policies, dict(scores or {}))
    if not lookaheads:
        raise ValueError("[advise] no lookaheads are given; leave them out to try the usual ones")
    search = _Search(trace, machine, dict(scores or {}), seed)
    ahead = sorted(set(lookaheads))
    first = _deep_enough([search.report(_REFERENCE, each) for each in ahead]).lookahead
    best = _by_merit([search.report(name, first) for name in names])[0].policy
    depths = [search.report(best, each) for each in ahead]
    deep = _deep_enough(depths)
    reports = _by_merit([search.report(name, deep.lookahead) for name in names])
    least = reports[0].lower_bound_bytes if _wanted(bound, trace) else None
    return _advice(search, capacity, reports, depths, deep.lookahead, least)


class _Search:
    """Simulations of one trace in one machine, with any policy and look-ahead."""

    def __init__(self, trace: Trace, machine: Hierarchy, scores: Mapping[str, ArrayLike], seed: int) -> None:
        self.trace = trace
        self.machine = machine
        self.scores = scores
        self.seed = seed
        self._retimed: dict[int, Trace] = {}

    def report(self, policy: str, lookahead: int, *, recompute: bool = False) -> Report:
        """Return what ``simulate`` says."""
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
    search: _Search,
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
    trace, moments = search.trace, Moments.of(search.trace)
    floor = moments.floor_bytes
    curve = sweep(trace, [best.policy], _CAPACITIES, search.machine, scores=search.scores, progress=False)
    kept, resident = worth_keeping(trace, capacity, max(capacity - moments.resident_bytes, 0))
    kept_bytes = moved_with_kept(trace, kept, capacity, PLAIN) if kept else plain.moved_bytes
    if kept_bytes >= plain.moved_bytes:
        resident, kept_bytes = [], plain.moved_bytes
    knee, ample = curve.knee(), Occupancy(trace).peak_bytes
    calm = curve.smallest_without_stalls()
    tried = tuple(Depth(each.lookahead, each.stall_s, each.moved_bytes) for each in depths)
    words = [*sentences(best, plain, causal, least, capacity), ahead_words(tried, lookahead)]
    words += [memory_words(floor, knee, calm, ample), offload_words(offload)]
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
        without_stalls_bytes=calm,
        lower_bound_bytes=least,
        ranking=tuple(ranking),
        depths=tried,
        resident=tuple(resident),
        resident_moved_bytes=kept_bytes,
        offload=offload,
        words=tuple(words),
    )


def _capacity(trace: Trace, budget: int | float | str | None, hierarchy: Hierarchy | str | None) -> int:
    wanted = parse_share(budget) if isinstance(budget, str) else budget
    if wanted is None and "capacity_bytes" in trace.meta:
        wanted = int(trace.meta["capacity_bytes"])
    if wanted is None and hierarchy is not None:
        wanted = hierarchy_of(hierarchy).tiers[0].capacity_bytes
    if wanted is None:
        raise ValueError(
            "[advise] no budget: the trace does not say in how much memory it was recorded; give a size such "
            "as '512MiB', or a share of the peak such as '50%'"
        )
    if isinstance(wanted, float):
        wanted = int(wanted * Occupancy(trace).peak_bytes)
    return wanted


def _names(policies: Sequence[str] | None, scores: Mapping[str, ArrayLike]) -> list[str]:
    if policies is None:
        return [name for name in POLICIES if name != "learned" or name in scores]
    for name in policies:
        if name not in POLICIES:
            raise UnknownNameError.among("policy", name, POLICIES)
    if not policies:
        raise ValueError("[advise] no policies are given; leave them out to try all")
    return list(dict.fromkeys(policies))


def _wanted(bound: bool | None, trace: Trace) -> bool:
    return trace.access_count <= BOUNDED if bound is None else bound


def _by_merit(reports: list[Report]) -> list[Report]:
    """Return reports, the best first: those near the fastest by bytes, then the others by time."""
    fastest = min(each.total_s for each in reports)
    near = [each for each in reports if each.total_s <= fastest * _NEAR]
    others = [each for each in reports if each.total_s > fastest * _NEAR]
    return [
        *sorted(near, key=lambda each: (each.moved_bytes, each.total_s, _preference(each.policy))),
        *sorted(others, key=lambda each: (each.total_s, each.moved_bytes, _preference(each.policy))),
    ]


def _preference(policy: str) -> int:
    """Return what decides between equals: the plain one, then those that know the future."""
    return 0 if policy == PLAIN else 1 if _needs_future(policy) else 2


def _ranked(report: Report, least: int | None) -> Ranked:
    moved = report.moved_bytes
    regret = moved / least if least else 1.0 if least == 0 and not moved else None
    future = _needs_future(report.policy)
    return Ranked(report.policy, moved, report.stall_s, report.total_s, regret, future)


def _needs_future(policy: str) -> bool:
    return bool({"next_use", "next_read"} & set(needs(policy)))


def _deep_enough(depths: list[Report]) -> Report:
    """Return the least look-ahead that is about as quick as the quickest with room for its steps."""
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
