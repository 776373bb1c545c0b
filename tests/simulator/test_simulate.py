"""The hierarchy loop against an independent one, and the laws that every replay keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelera import simulate
from accelera.errors import UnknownNameError
from accelera.memory import Compute, Hierarchy, Tier
from accelera.policy import POLICIES
from accelera.policy._internal import prepare
from accelera.simulator import Report
from accelera.trace import Kind, Trace
from tests.policy.plugins import OrderedLru
from tests.simulator.busy import machines, traces
from tests.simulator.oracle import Slowly

NAMES = ("lru", "fifo", "belady", "scored")


def assert_as_slowly(report: Report, slowly: Slowly) -> None:
    for tier, shelf in zip(report.tiers, slowly.shelves, strict=False):
        found = {
            "hits": tier.hits,
            "misses": tier.misses,
            "evictions": tier.evictions,
            "evicted_bytes": tier.evicted_bytes,
            "fetched_bytes": tier.fetched_bytes,
            "created_bytes": tier.created_bytes,
            "saved_bytes": tier.saved_bytes,
            "peak_bytes": tier.peak_bytes,
        }
        assert {k: v for k, v in found.items() if v} == {k: v for k, v in shelf.figures.items() if v}
    for index, link in enumerate(report.links):
        moved = slowly.links[index, "towards"], slowly.links[index, "away"]
        assert (link.towards_bytes, link.away_bytes) == moved
    times = report.compute_s, report.stall_s, report.total_s
    assert times == pytest.approx((slowly.compute, slowly.stall, slowly.done))
    assert report.tail_s == pytest.approx(max(0, max(slowly.free_s.values(), default=0) - slowly.done))
    assert (report.oversized_steps, report.recomputed_steps) == (slowly.oversized, slowly.recomputed)


@given(
    trace=traces(),
    machine=machines(),
    policy=st.sampled_from(NAMES),
    lookahead=st.integers(0, 3),
    recompute=st.booleans(),
)
def test_all_figures_are_those_of_an_independent_replay(
    trace: Trace, machine: Hierarchy, policy: str, lookahead: int, recompute: bool
) -> None:
    report = simulate(trace, machine, policy, lookahead=lookahead, recompute=recompute)
    assert_as_slowly(report, Slowly(trace, machine, policy, lookahead, recompute).run())


@given(trace=traces(), machine=machines(), policy=st.sampled_from(NAMES), lookahead=st.integers(0, 3))
def test_laws_of_every_replay(trace: Trace, machine: Hierarchy, policy: str, lookahead: int) -> None:
    report = simulate(trace, machine, policy, lookahead=lookahead)
    assert report.hits + report.misses == trace.access_count
    assert report.stall_s >= 0
    assert report.peak_bytes <= machine.tiers[0].capacity_bytes
    assert report.total_s >= report.compute_s
    assert report.moved_bytes == report.fetched_bytes + report.saved_bytes
    for link, tier in zip(report.links, machine.tiers[1:], strict=True):
        towards_s = link.towards_bytes * tier.towards_s_per_byte + link.towards_moves * tier.latency_s
        away_s = link.away_bytes * tier.away_s_per_byte + link.away_moves * tier.latency_s
        assert (link.towards_s, link.away_s) == pytest.approx((towards_s, away_s))
        end_s = (report.total_s + report.tail_s) * (1 + 1e-9)
        assert report.total_s * (1 + 1e-9) >= towards_s
        assert end_s >= away_s if tier.duplex else end_s >= towards_s + away_s


def test_a_lower_tier_has_a_victim_although_its_next_use_was_a_hit_above() -> None:
    """Kept in the first tier, a buffer is used again without the second hearing of it."""
    trace = Trace.from_arrays([0, 1, 0, 1, 0, 2, 3], [2, 2, 2, 2, 2, 3, 3])
    machine = Hierarchy((Tier("top", 5, 1.0), Tier("middle", 4, 1.0), Tier("home", 100, 1.0)))
    for policy in sorted(set(POLICIES) - {"learned"}):
        report = simulate(trace, machine, policy)
        assert report.tiers[1].evictions >= 1, policy


@given(trace=traces(ends=False), policy=st.sampled_from(NAMES), lookahead=st.integers(0, 3))
def test_bytes_in_are_bytes_out_and_bytes_here(trace: Trace, policy: str, lookahead: int) -> None:
    """Where nothing is freed and nothing streamed, what came and did not go is resident."""
    capacity = simulate(trace, 1).largest_step_bytes + 10
    report = simulate(trace, capacity, policy, lookahead=lookahead)
    top = report.tiers[0]
    resident = top.fetched_bytes + top.created_bytes - top.evicted_bytes
    assert 0 <= resident <= top.peak_bytes <= capacity
    assert report.oversized_steps == report.streamed_bytes == 0


@given(trace=traces(ends=False), machine=machines(), policy=st.sampled_from(NAMES))
def test_with_room_for_all_only_what_exists_before_is_fetched(
    trace: Trace, machine: Hierarchy, policy: str
) -> None:
    report = simulate(trace, machine.with_capacity(10**6), policy, lookahead=2)
    first = np.unique(trace.accessed, return_index=True)[1]
    read_first = trace.accessed[first[trace.kind[trace.is_access][first] == Kind.READ]]
    assert report.fetched_bytes == trace.size_bytes[read_first].sum()
    assert report.saved_bytes == report.evictions == 0


@given(trace=traces(ends=False), machine=machines(most_tiers=2))
def test_with_room_for_all_looking_further_ahead_never_hurts(trace: Trace, machine: Hierarchy) -> None:
    roomy = machine.with_capacity(10**6)
    times = [simulate(trace, roomy, lookahead=lookahead).total_s for lookahead in (0, 1, 2, 5, 10**9)]
    assert times == sorted(times, reverse=True)


@given(trace=traces(), machine=machines(most_tiers=2), lookahead=st.integers(0, 3))
def test_what_moves_does_not_depend_on_speed(trace: Trace, machine: Hierarchy, lookahead: int) -> None:
    fast = replace(
        machine,
        tiers=tuple(replace(tier, bandwidth_bytes_per_s=100.0, latency_s=0.0) for tier in machine.tiers),
    )
    here, there = (simulate(trace, each, "belady", lookahead=lookahead) for each in (machine, fast))
    assert here.tiers == there.tiers


@given(trace=traces(), machine=machines(most_tiers=2), lookahead=st.integers(0, 3))
def test_a_faster_link_is_never_slower(trace: Trace, machine: Hierarchy, lookahead: int) -> None:
    top, home = machine.tiers
    faster = Hierarchy(
        (top, replace(home, bandwidth_bytes_per_s=2 * home.bandwidth_bytes_per_s, latency_s=0.0, duplex=True))
    )
    slow = simulate(trace, machine, lookahead=lookahead).total_s
    assert simulate(trace, faster, lookahead=lookahead).total_s <= slow * (1 + 1e-12)


def steps(*operands: tuple[str, str], sizes: int = 10, **more: object) -> Trace:
    """Return a trace of steps given as (reads, writes), a letter per buffer; ``-x`` frees after a step."""
    events = [
        (ord(letter), kind, step)
        for step, pair in enumerate(operands)
        for kind, letters in zip((Kind.READ, Kind.WRITE, Kind.FREE), (*pair, ""), strict=False)
        for letter in letters
    ]
    ids, kinds, numbers = zip(*events, strict=True)
    return Trace.from_arrays(ids, sizes, kinds=kinds, steps=numbers, **more)  # type: ignore[arg-type]


TEN_PER_SECOND = Hierarchy((Tier("top", 20, 1.0), Tier("home", 2**40, 10.0)))


def test_operands_of_one_step_are_held_together() -> None:
    """With room for two, the step that reads a and c cannot give up a for c."""
    report = simulate(steps(("a", ""), ("b", ""), ("ac", ""), ("a", "")), TEN_PER_SECOND, "lru")
    assert (report.hits, report.misses, report.evictions) == (2, 3, 1)


def test_a_step_that_exceeds_the_tier_is_reported_and_streamed() -> None:
    report = simulate(steps(("abc", ""), ("ab", "")), TEN_PER_SECOND)
    assert (report.oversized_steps, report.largest_step_bytes, report.streamed_bytes) == (1, 30, 10)
    assert (report.hits, report.fetched_bytes, report.peak_bytes) == (2, 30, 20)
    assert "1 steps exceed the first tier; the largest needs 30 B" in report.table()


def test_what_is_streamed_away_is_written_when_its_step_is_done() -> None:
    report = simulate(steps(("a", "b"), sizes=30, seconds=[5.0]), TEN_PER_SECOND)
    assert (report.fetched_bytes, report.saved_bytes) == (30, 30)
    assert (report.total_s, report.tail_s) == (8.0, 3.0)


def test_a_dirty_victim_is_written_back_before_its_room_is_used() -> None:
    trace = steps(("", "a"), ("", "b"), ("c", ""), seconds=[1.0, 1.0, 1.0])
    report = simulate(trace, TEN_PER_SECOND)
    assert (report.evictions, report.saved_bytes, report.fetched_bytes) == (1, 10, 10)
    assert (report.compute_s, report.stall_s) == (3.0, 2.0)


def test_a_freed_buffer_is_never_written_back() -> None:
    kinds = [Kind.WRITE, Kind.FREE, Kind.WRITE, Kind.WRITE]
    report = simulate(Trace.from_arrays([1, 1, 2, 3], 10, kinds=kinds, steps=[0, 0, 1, 2]), TEN_PER_SECOND)
    assert (report.evictions, report.moved_bytes, report.peak_bytes) == (0, 0, 20)


@pytest.mark.parametrize("lookahead", [0, 1, 2])
def test_what_later_steps_hold_is_saved_all_the_same(lookahead: int) -> None:
    """A step reads what the first one saves, a third sets it anew: two saves in all, however far ahead."""
    kinds = [Kind.WRITE, Kind.SAVE, Kind.READ, Kind.WRITE, Kind.SAVE, Kind.READ]
    trace = Trace.from_arrays([1] * 6, 10, kinds=kinds, steps=[0, 0, 1, 2, 2, 3])
    report = simulate(trace, TEN_PER_SECOND, lookahead=lookahead)
    assert (report.saved_bytes, report.fetched_bytes) == (20, 0)
    assert report.moved_bytes == report.lower_bound_bytes


def test_looking_ahead_hides_the_fetch_behind_the_arithmetic() -> None:
    trace = steps(("a", ""), ("b", ""), ("c", ""), seconds=[1.0, 1.0, 1.0])
    roomy = TEN_PER_SECOND.with_capacity(100)
    assert simulate(trace, roomy).stall_s == 3.0
    assert simulate(trace, roomy, lookahead=1).stall_s == 1.0


def test_a_buffer_that_is_cheap_to_make_is_made_again() -> None:
    """``x`` made from ``w`` is given up for c and d, and read once more at the end."""
    trace = steps(("w", "x"), ("c", ""), ("d", ""), ("x", ""), seconds=[0.1] * 4)
    moved, made = (simulate(trace, TEN_PER_SECOND, recompute=flag) for flag in (False, True))
    assert (moved.saved_bytes, moved.recomputed_steps) == (10, 0)
    assert (made.saved_bytes, made.recomputed_steps) == (0, 1)
    assert made.total_s < moved.total_s
    assert made.compute_s == pytest.approx(0.5)
    dear = replace(trace, seconds=np.array([100.0, 0.1, 0.1, 0.1]))
    assert simulate(dear, TEN_PER_SECOND, recompute=True).recomputed_steps == 0


def test_nothing_is_made_again_from_inputs_that_have_changed() -> None:
    trace = steps(("w", "x"), ("c", "w"), ("d", ""), ("x", ""), seconds=[0.1] * 4)
    assert simulate(trace, TEN_PER_SECOND, recompute=True).recomputed_steps == 0


def test_three_tiers_write_through_the_middle_one() -> None:
    """While ``a`` is on its way up it holds its place in the middle, so ``c`` passes by."""
    machine = Hierarchy((Tier("top", 10, 1.0), Tier("host", 10, 10.0), Tier("disk", 2**40, 1.0)))
    report = simulate(steps(("", "a"), ("", "b"), ("", "c"), ("a", "")), machine)
    assert [tier.saved_bytes for tier in report.tiers] == [30, 30, 0]
    assert [link.towards_bytes for link in report.links] == [10, 10]
    assert [tier.peak_bytes for tier in report.tiers] == [10, 10, 30]


def test_the_roofline_is_used_where_a_trace_has_no_times() -> None:
    trace = steps(("a", ""), ("b", ""), flops=[100.0, 1.0], seconds=[np.nan, np.nan])
    machine = replace(TEN_PER_SECOND, compute=Compute(10.0, 5.0, 0.5))
    assert simulate(trace, machine).compute_s == 10.5 + 2.5
    half = replace(trace, seconds=np.array([3.0, np.nan]))
    assert simulate(half, machine).compute_s == 3.0 + 2.5


@given(trace=traces(), machine=machines(), lookahead=st.integers(0, 2))
def test_a_plug_in_gives_the_same_as_the_compiled_policy(
    trace: Trace, machine: Hierarchy, lookahead: int
) -> None:
    own = [OrderedLru() for _ in machine.tiers[1:]]
    plugged_in = simulate(trace, machine, own, lookahead=lookahead)
    compiled = simulate(trace, machine, "lru", lookahead=lookahead)
    assert plugged_in.policy == "OrderedLru"
    assert plugged_in.to_dict() | {"policy": ""} == compiled.to_dict() | {"policy": ""}


def test_a_compiled_policy_object_works_too() -> None:
    trace = steps(("a", ""), ("b", ""), ("c", ""), ("a", ""))
    given_object = simulate(trace, 20, prepare("belady", trace, 20).policy())
    assert given_object.hits == simulate(trace, 20, "belady").hits == 1


def test_a_plug_in_that_names_no_proper_victim_is_refused() -> None:
    class Stubborn(OrderedLru):
        def victim(self, evictable: Callable[[int], bool]) -> int | None:
            return 99

    with pytest.raises(ValueError, match=r"named 99 as the victim.*evictable"):
        simulate(steps(("a", ""), ("b", ""), ("c", "")), 20, Stubborn())


def test_what_a_plug_in_raises_is_raised() -> None:
    class Broken(OrderedLru):
        def insert(self, buffer: int, nbytes: int, time: int, write: bool) -> None:
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        simulate(steps(("a", "")), 20, Broken())


def test_bad_requests_are_refused() -> None:
    trace = steps(("a", ""))
    with pytest.raises(UnknownNameError, match="belady"):
        simulate(trace, 10, "beladi")
    with pytest.raises(UnknownNameError, match="copilot"):
        simulate(trace, "copilott")
    with pytest.raises(ValueError, match="lookahead=-1"):
        simulate(trace, 10, lookahead=-1)
    with pytest.raises(ValueError, match="1 tiers"):
        simulate(trace, Hierarchy((Tier("ram", 1, 1.0),)))
    with pytest.raises(ValueError, match="1 policy objects are given for 2 tiers"):
        simulate(trace, "gpu-24gb", OrderedLru())


def test_capacities_may_be_given_alone() -> None:
    trace = steps(("a", ""))
    for capacity in (2**20, "1MiB", Hierarchy.of("1 MiB")):
        assert simulate(trace, capacity).tiers[0].capacity_bytes == 2**20


def test_an_empty_trace_is_replayed() -> None:
    report = simulate(Trace.from_arrays([], []), 10)
    assert (report.hits, report.misses, report.total_s, report.hit_ratio) == (0, 0, 0.0, 1.0)
    only_frees = Trace.from_arrays([1, 2], 5, kinds=[Kind.FREE, Kind.FREE], steps=[0, 0])
    assert simulate(only_frees, 10).moved_bytes == 0


def test_the_home_says_when_it_is_too_small() -> None:
    machine = Hierarchy((Tier("top", 10, 1.0), Tier("home", 15, 1.0)))
    report = simulate(steps(("a", ""), ("b", "")), machine)
    assert report.home_exceeded
    assert "home would have to hold 20 B" in report.table()


def test_counters_are_told_by_tier_and_link() -> None:
    report = simulate(steps(("a", ""), ("b", ""), ("a", "")), "gpu-24gb")
    told = report.to_dict()
    assert told["tiers"][0]["name"] == "device"
    assert Counter(link["name"] for link in told["links"]) == {"device - host": 1, "host - disk": 1}
    assert "device" in report.table()
