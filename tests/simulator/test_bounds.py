"""The lower bound: under every schedule, under every policy, and exact where the optimum is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelera.policy import POLICIES
from accelera.simulator import lower_bound, lower_bounds, plan_residency, simulate
from accelera.simulator.time_steps import TimeSteps
from accelera.trace import Kind, Occupancy, Trace
from tests.simulator.optimum import least_moved_bytes
from tests.simulator.traces import lively_traces

READ, WRITE, RELEASE, SAVE, FREE = Kind.READ, Kind.WRITE, Kind.RELEASE, Kind.SAVE, Kind.FREE
ALL = tuple(name for name in POLICIES if name != "learned")


def trace_of(*events: tuple[int, Kind, int], size: int = 10) -> Trace:
    buffers, kinds, steps = zip(*events, strict=True)
    return Trace.from_arrays(buffers, size, kinds=kinds, steps=steps)


@given(trace=lively_traces() | lively_traces(releases=True), spare=st.integers(0, 8))
def test_no_schedule_moves_less(trace: Trace, spare: int) -> None:
    capacity = TimeSteps.of(trace).floor_bytes + spare
    assert lower_bound(trace, capacity) <= least_moved_bytes(trace, capacity)


@given(
    trace=lively_traces(buffers=6, steps=12) | lively_traces(buffers=6, steps=12, releases=True),
    capacity=st.integers(3, 25),
    policy=st.sampled_from(ALL),
    lookahead=st.integers(0, 2),
)
def test_no_policy_moves_less(trace: Trace, capacity: int, policy: str, lookahead: int) -> None:
    if (trace.kind == RELEASE).any():
        capacity = max(capacity, int(trace.size_bytes.sum()) // 2, TimeSteps.of(trace).floor_bytes)
    report = simulate(trace, capacity, policy, lookahead=lookahead)
    assert report.moved_bytes >= lower_bound(trace, capacity) == report.lower_bound_bytes
    assert report.regret >= 1


@given(trace=lively_traces(buffers=6, steps=12))
def test_with_room_for_all_only_the_compulsory_is_moved(trace: Trace) -> None:
    plan = plan_residency(trace, Occupancy(trace).peak_bytes)
    assert plan.lower_bound_bytes == plan.compulsory_bytes
    assert not plan.dropped.any()
    assert simulate(trace, Occupancy(trace).peak_bytes, "lru").moved_bytes == plan.compulsory_bytes


@given(st.lists(st.integers(0, 7), min_size=1, max_size=60), st.integers(1, 8))
def test_on_reads_of_one_size_it_is_what_belady_moves(sequence: list[int], room: int) -> None:
    trace = Trace.from_arrays(sequence, 100)
    assert lower_bound(trace, 100 * room) == simulate(trace, 100 * room, "belady").moved_bytes


@given(trace=lively_traces(buffers=6, steps=12), capacity=st.integers(0, 20))
def test_more_room_never_costs_more(trace: Trace, capacity: int) -> None:
    floor = TimeSteps.of(trace).floor_bytes
    assert lower_bound(trace, floor + capacity) >= lower_bound(trace, floor + capacity + 1)


def test_windows_bound_less_sharply(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Trace.from_arrays(np.random.default_rng(1).integers(0, 40, 2000), 64)
    whole = plan_residency(trace, 64 * 15)
    monkeypatch.setattr(lower_bounds, "WINDOW_INTERVALS", 300)
    parts = plan_residency(trace, 64 * 15)
    assert 0.9 * whole.lower_bound_bytes < parts.lower_bound_bytes <= whole.lower_bound_bytes
    assert parts.compulsory_bytes == whole.compulsory_bytes == 64 * 40


def test_what_is_freed_or_set_anew_is_never_written() -> None:
    freed = trace_of((0, WRITE, 0), (1, READ, 1), (0, FREE, 1))
    anew = trace_of((0, WRITE, 0), (1, READ, 1), (0, WRITE, 2), (0, FREE, 2))
    assert lower_bound(freed, 10) == lower_bound(anew, 10) == 10


def test_a_result_is_written_unless_it_stays_to_the_end() -> None:
    trace = trace_of((0, WRITE, 0), (1, READ, 1))
    assert lower_bound(trace, 20) == 10
    assert lower_bound(trace, 10) == 20


def test_contents_are_written_once_however_often_they_leave() -> None:
    trace = trace_of((0, WRITE, 0), (1, READ, 1), (0, READ, 2), (1, READ, 3), (0, READ, 4), (0, FREE, 4))
    assert lower_bound(trace, 10) == 10 * (1 + 2 + 2)


def test_a_read_of_what_was_freed_is_a_fetch_at_any_capacity() -> None:
    assert lower_bound(trace_of((0, READ, 0), (0, FREE, 0), (0, READ, 1)), 10**6) == 20


def test_what_is_saved_on_request_is_moved_at_any_capacity() -> None:
    trace = trace_of((0, WRITE, 0), (0, SAVE, 0), (0, FREE, 0))
    assert lower_bound(trace, 10**6) == plan_residency(trace, 10).compulsory_bytes == 10


def test_a_step_that_lets_go_of_an_operand_has_two_moments() -> None:
    together = trace_of((0, READ, 0), (1, READ, 0), (0, RELEASE, 0), (1, RELEASE, 0))
    in_turn = trace_of((0, READ, 0), (0, RELEASE, 0), (1, READ, 0), (1, RELEASE, 0))
    assert TimeSteps.of(together).held_bytes.tolist() == [20]
    assert TimeSteps.of(in_turn).held_bytes.tolist() == [10, 10]


def test_a_step_larger_than_the_capacity_bounds_nothing_but_its_first_reads() -> None:
    trace = trace_of((0, READ, 0), (1, READ, 0), (2, READ, 0), (0, READ, 1))
    assert lower_bound(trace, 15) == 30


def test_dropped_shares_say_what_leaves() -> None:
    plan = plan_residency(trace_of((0, READ, 0), (1, READ, 1), (0, READ, 2)), 10)
    assert plan.dropped.tolist() == [1, 0, 0]


def test_an_empty_trace_moves_nothing() -> None:
    assert lower_bound(Trace.from_arrays([], []), 0) == 0


def test_a_negative_capacity_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[lower_bound\] capacity_bytes=-1"):
        lower_bound(trace_of((0, READ, 0)), -1)
