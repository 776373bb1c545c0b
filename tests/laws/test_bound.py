"""The law of the bound: no replay moves fewer bytes than the least that any schedule could.

Whatever the policy, the tiers, the look-ahead and the trace, reads of what was freed included.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelera.memory import Hierarchy, Tier
from accelera.policy import POLICIES
from accelera.simulator import advise, lower_bound, plan_residency, simulate, sweep
from accelera.simulator._internal import bound_curve
from accelera.simulator.advice_search import with_lookahead
from accelera.simulator.time_steps import TimeSteps
from accelera.trace import Kind, Trace
from tests.policy.plugins import OrderedLru
from tests.simulator.traces import wild_records, wild_traces

READ, WRITE, RELEASE, SAVE, FREE = Kind.READ, Kind.WRITE, Kind.RELEASE, Kind.SAVE, Kind.FREE
NAMES = sorted(set(POLICIES) - {"learned"})
AMPLE = 10**6


@st.composite
def machines(draw: st.DrawFn) -> Hierarchy:
    """One, two or three caches above a home."""
    capacities = draw(st.lists(st.integers(0, 20), min_size=1, max_size=3))
    caches = [Tier(f"tier {i}", capacity, 1e9) for i, capacity in enumerate(capacities)]
    return Hierarchy((*caches, Tier("home", AMPLE, 1e8)))


def trace_of(*events: tuple[int, Kind, int], size: int = 1 << 20) -> Trace:
    buffers, kinds, steps = zip(*events, strict=True)
    return Trace.from_arrays(buffers, size, kinds=kinds, steps=steps)


@settings(max_examples=400)
@given(
    trace=wild_traces(),
    machine=machines(),
    policy=st.sampled_from([*NAMES, OrderedLru]),
    lookahead=st.integers(0, 4),
)
def test_no_replay_moves_less_than_the_bound(
    trace: Trace, machine: Hierarchy, policy: str | type[OrderedLru], lookahead: int
) -> None:
    chosen = policy if isinstance(policy, str) else [policy() for _ in machine.tiers[1:]]
    report = simulate(trace, machine, chosen, lookahead=lookahead)
    assert lower_bound(trace, machine.tiers[0].capacity_bytes) == report.lower_bound_bytes
    assert report.lower_bound_bytes <= report.moved_bytes
    assert report.regret >= 1


@settings(max_examples=200)
@given(
    trace=wild_records(),
    machine=machines(),
    policy=st.sampled_from(NAMES),
    lookahead=st.none() | st.integers(0, 4),
)
def test_nor_does_a_record_in_another_memory_or_with_another_window(
    trace: Trace, machine: Hierarchy, policy: str, lookahead: int | None
) -> None:
    retimed = trace if lookahead is None else with_lookahead(trace, lookahead)
    report = simulate(retimed, machine, policy)
    assert report.lower_bound_bytes <= report.moved_bytes


@pytest.mark.parametrize("policy", ["lru", "planner"])
@pytest.mark.parametrize("lookahead", [0, 1, 2])
def test_a_read_does_not_find_what_an_earlier_step_frees(policy: str, lookahead: int) -> None:
    trace = trace_of((0, READ, 0), (0, FREE, 0), (0, READ, 1))
    report = simulate(trace, 1 << 20, policy, lookahead=lookahead)
    assert (report.lower_bound_bytes, report.moved_bytes, report.regret) == (2 << 20, 2 << 20, 1)
    assert (report.hits, report.misses) == (0, 2)


@given(trace=wild_traces() | wild_records(), policy=st.sampled_from(NAMES), lookahead=st.integers(0, 4))
def test_with_room_for_all_the_compulsory_is_moved_however_far_one_looks_ahead(
    trace: Trace, policy: str, lookahead: int
) -> None:
    """Evictions on request are left out: they may be fetched again."""
    trace = without(trace, Kind.EVICT)
    report = simulate(with_lookahead(trace, lookahead), AMPLE, policy, lookahead=lookahead)
    assert report.moved_bytes == plan_residency(trace, AMPLE).compulsory_bytes


@given(trace=wild_traces(), machine=machines(), policy=st.sampled_from(NAMES), lookahead=st.integers(0, 3))
def test_what_is_new_is_fetched_even_where_other_things_are_made_again(
    trace: Trace, machine: Hierarchy, policy: str, lookahead: int
) -> None:
    """Recomputing is outside the bound, but it makes nothing that was never here."""
    report = simulate(trace, machine, policy, lookahead=lookahead, recompute=True)
    assert report.fetched_bytes >= plan_residency(without(trace, SAVE), AMPLE).compulsory_bytes


@given(trace=wild_records(), lookahead=st.integers(0, 4))
def test_another_window_changes_no_life(trace: Trace, lookahead: int) -> None:
    """The order of a buffer's accesses and frees stays, as does that of its writes and savings."""
    usual = with_lookahead(trace, 0)
    assert lives(with_lookahead(usual, lookahead)) == lives(usual)


@settings(max_examples=100)
@given(
    trace=wild_traces() | wild_records(),
    capacities=st.lists(st.integers(0, 25), min_size=1, max_size=5, unique=True),
)
def test_the_curve_promises_no_more_than_the_bound(trace: Trace, capacities: list[int]) -> None:
    curve = bound_curve(trace, capacities)
    assert (curve <= [lower_bound(trace, each) for each in capacities]).all()


@settings(max_examples=25)
@given(trace=wild_traces().filter(len), capacity=st.integers(1, 25), lookahead=st.integers(0, 3))
def test_sweeps_have_no_regret_below_one(trace: Trace, capacity: int, lookahead: int) -> None:
    found = sweep(trace, ["lru", "planner"], [capacity], lookahead=lookahead, progress=False)
    assert all((found.regret(policy) >= 1).all() for policy in found.policies)


@settings(max_examples=25)
@given(
    trace=(wild_traces() | wild_records()).filter(len),
    capacity=st.integers(1, 25),
    machine=st.sampled_from([None, "copilot"]),
)
def test_advice_has_no_regret_below_one(trace: Trace, capacity: int, machine: str | None) -> None:
    found = advise(trace, capacity, machine, policies=["lru", "planner", "s3fifo"], bound=True)
    assert all(each.regret is not None and each.regret >= 1 for each in found.ranking)
    if machine is None:
        assert found.resident_moved_bytes >= lower_bound(trace, capacity)


@given(trace=wild_traces() | wild_records())
def test_what_needs_no_streaming_is_not_streamed(trace: Trace) -> None:
    report = simulate(trace, TimeSteps.of(trace).resident_bytes, "lru", lookahead=2)
    assert report.oversized_steps == report.streamed_bytes == 0


def test_what_is_kept_throughout_is_fetched_again_after_each_free() -> None:
    events = [
        event
        for turn in range(6)
        for event in (
            (0, READ, 3 * turn),
            (1 + turn, READ, 3 * turn + 1),
            (0, READ, 3 * turn + 2),
            (0, FREE, 3 * turn + 2),
        )
    ]
    found = advise(trace_of(*events), 1 << 20, bound=True)
    assert found.lower_bound_bytes == 18 << 20
    assert found.resident_moved_bytes >= 18 << 20


def test_a_save_of_what_is_not_there_moves_nothing() -> None:
    first = trace_of((0, SAVE, 0), (0, WRITE, 0), (0, FREE, 0))
    freed = trace_of((0, WRITE, 0), (0, FREE, 0), (0, SAVE, 0), (0, READ, 1), (0, FREE, 1))
    assert lower_bound(first, 1 << 20) == simulate(first, 1 << 20).moved_bytes == 0
    assert lower_bound(freed, 1 << 20) == simulate(freed, 1 << 20).moved_bytes == 1 << 20


def without(trace: Trace, *kinds: Kind) -> Trace:
    rows = ~np.isin(trace.kind, kinds)
    return Trace.from_arrays(
        trace.buffer[rows],
        trace.size_bytes[trace.buffer[rows]],
        kinds=trace.kind[rows],
        steps=trace.step[rows],
    )


def lives(trace: Trace) -> dict[int, tuple[list[int], list[int]]]:
    """Return per buffer its accesses and frees in order, and its writes, savings and frees."""
    found: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for buffer, kind in zip(trace.buffer.tolist(), trace.kind.tolist(), strict=True):
        if kind in (READ, WRITE, FREE):
            found[buffer][0].append(kind)
        if kind in (WRITE, SAVE, FREE):
            found[buffer][1].append(kind)
    return dict(found)
