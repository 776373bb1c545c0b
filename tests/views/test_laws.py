"""Laws of the views: for any trace, the numbers of a picture agree with each other and with the replay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelera.simulator import lower_bound, simulate, sweep
from accelera.simulator.scorers import unit_scores
from accelera.simulator.time_steps import TimeSteps
from accelera.trace import Occupancy, Trace
from accelera.trace._internal import ROLES, stack_distances
from accelera.views import MeasuredTrace, WhatIf, fit_view
from accelera.views._internal import (
    comparison_view,
    curves_view,
    least_per_unit,
    needs_schedule,
    occupancy_view,
    scores_view,
    timeline_view,
)
from accelera.views.occupancy import MOST_POINTS, thinned
from tests.simulator.busy import traces
from tests.simulator.traces import wild_records, wild_traces


@st.composite
def roled(draw: st.DrawFn) -> Trace:
    """Any small trace, its buffers with roles, in one or more iterations."""
    trace = draw(traces() | wild_traces() | wild_records())
    roles = draw(st.lists(st.sampled_from(ROLES), min_size=trace.buffer_count, max_size=trace.buffer_count))
    starts = sorted(draw(st.sets(st.integers(0, max(trace.step_count - 1, 0)), max_size=3)))
    return replace(trace, roles=tuple(roles), meta={"iterations": starts})


budgets = st.integers(0, 150)
what_ifs = st.builds(
    WhatIf,
    hierarchy=st.sampled_from(["gpu-24gb", "laptop", "h200"]),
    link_bytes_per_s=st.none() | st.floats(1e6, 1e12),
    lookahead=st.integers(0, 3),
)


@given(roled())
def test_roles_sum_to_the_total_and_the_peak_is_the_occupancys(trace: Trace) -> None:
    view = occupancy_view(trace, 7)
    peak = Occupancy(trace).peak_bytes
    summed = np.sum([role.bytes for role in view.roles], axis=0) if view.roles else np.zeros(len(view.total))
    assert np.array_equal(summed, view.total)
    assert max(view.total, default=peak) == view.peak.bytes == peak
    assert sum(view.peak.roles.values()) == (peak if view.total else 0)
    assert view.peak.step in view.steps or not view.steps
    assert view.budget_bytes == 7
    assert len(view.steps) == len(view.total) <= view.steps_in_all
    begins = [phase.begin for phase in view.phases]
    assert begins[1:] == [phase.end for phase in view.phases][:-1]


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=5000), st.integers(10, 700))
def test_a_thinned_series_keeps_its_peak_and_its_ends(values: list[int], most: int) -> None:
    series = np.array(values)
    kept = thinned(series, most)
    assert len(kept) <= max(most, 1)
    assert (np.diff(kept) > 0).all()
    assert {0, len(series) - 1} <= set(kept.tolist())
    assert series[kept].max() == series.max()
    assert series[kept].min() == series.min()


def test_a_long_trace_is_thinned_with_its_peak() -> None:
    count = 5000
    rng = np.random.default_rng(0)
    trace = Trace.from_arrays(np.arange(count), rng.integers(1, 100, count) * 10**6, kinds=np.full(count, 1))
    view = occupancy_view(trace)
    assert len(view.steps) <= MOST_POINTS
    assert view.steps_in_all == count
    assert max(view.total) == Occupancy(trace).peak_bytes == view.peak.bytes


@settings(max_examples=30)
@given(roled(), budgets, what_ifs)
def test_a_verdict_says_what_is_so(trace: Trace, budget: int, what_if: WhatIf) -> None:
    view = fit_view(trace, budget, what_if)
    verdict = view.verdict
    assert verdict.needs_bytes == Occupancy(trace).peak_bytes
    assert verdict.fits == (verdict.needs_bytes <= budget)
    assert verdict.short_bytes == verdict.needs_bytes - budget
    assert verdict.floor_bytes == TimeSteps.of(trace).floor_bytes
    assert verdict.runs == (verdict.floor_bytes <= budget)
    assert ("fits" in verdict.headline) == verdict.fits
    assert ("short" in verdict.headline) == (not verdict.fits)
    assert ("No schedule runs" in verdict.sentence) == (not verdict.runs)
    costs = (verdict.best_policy, verdict.moved_bytes, verdict.seconds, verdict.plain_moved_bytes)
    assert all((cost is None) == (not verdict.runs) for cost in costs)
    assert bool(view.comparison.policies) == verdict.runs
    if verdict.runs:
        best = view.comparison.policies[0]
        assert (verdict.best_policy, verdict.moved_bytes) == (best.policy, best.moved_bytes)
        assert best.moved_bytes == min(row.moved_bytes for row in view.comparison.policies)
        assert verdict.seconds is not None
        assert verdict.seconds >= verdict.compute_seconds * (1 - 1e-9)


@settings(max_examples=30)
@given(roled(), budgets, what_ifs)
def test_a_comparison_tells_what_simulate_finds(trace: Trace, budget: int, what_if: WhatIf) -> None:
    facts = MeasuredTrace(trace)
    budget = max(budget, facts.floor_bytes, 1)
    view = comparison_view(facts, budget, what_if, ["lru", "belady", "planner"])
    for row in view.policies:
        report = simulate(trace, what_if.at(budget), row.policy, lookahead=what_if.lookahead)
        beyond = report.moved_bytes - view.first_load_bytes
        assert abs(row.moved_bytes - max(beyond, 0) / view.units) <= 0.5
        assert row.needs_schedule == (row.policy != "lru")
        assert (row.hit_ratio, row.evictions) == (report.hit_ratio, report.evictions)
    moved = [row.moved_bytes for row in view.policies]
    assert moved == sorted(moved)


@settings(max_examples=30)
@given(roled(), what_ifs)
def test_what_fits_moves_nothing_after_the_first_load(trace: Trace, what_if: WhatIf) -> None:
    facts = MeasuredTrace(trace)
    view = fit_view(facts, max(facts.peak_bytes, 1), replace(what_if, lookahead=0))
    assert view.verdict.fits
    assert [row.moved_bytes for row in view.comparison.policies] == [0] * 4
    assert view.verdict.slowdown in (None, pytest.approx(1))
    assert view.verdict.best_policy == "lru"


@settings(max_examples=30)
@given(roled(), budgets)
def test_the_least_is_the_bound_and_nobody_goes_below(trace: Trace, budget: int) -> None:
    facts = MeasuredTrace(trace)
    least = least_per_unit(facts, budget)
    assert (least is None) == (budget < facts.floor_bytes)
    if least is not None:
        bound = (lower_bound(trace, budget) - facts.first_load_bytes()) / facts.units.count
        assert abs(least - max(bound, 0)) <= 0.5
        for row in comparison_view(facts, budget, policies=["belady", "planner", "lru"]).policies:
            assert row.moved_bytes >= least - 1


@settings(max_examples=30)
@given(roled(), what_ifs, st.integers(2, 9))
def test_curves_are_what_sweep_says(trace: Trace, what_if: WhatIf, points: int) -> None:
    view = curves_view(trace, ["lru", "belady"], points, what_if, bound=True)
    machine = what_if.at(1)
    found = sweep(trace, ["lru", "belady"], points, machine, lookahead=what_if.lookahead, progress=False)
    facts = MeasuredTrace(trace)
    assert tuple(view.capacities) == found.capacities
    for policy in ("lru", "belady"):
        beyond = (found.moved_bytes(policy) - facts.first_load_bytes(what_if.lookahead)) / facts.units.count
        assert np.abs(np.array(view.moved[policy]) - np.maximum(beyond, 0)).max() <= 0.5
        assert view.miss_ratio[policy] == [1 - report.hit_ratio for report in found.reports[policy]]
    assert view.knee_bytes in (None, found.knee())
    assert view.least is not None
    assert len(view.least) == len(view.capacities)


@settings(max_examples=30)
@given(roled(), st.integers(0, 80), what_ifs)
def test_a_timeline_adds_up(trace: Trace, budget: int, what_if: WhatIf) -> None:
    budget += MeasuredTrace(trace).floor_bytes  # below, no schedule runs
    view = timeline_view(trace, budget, what_if, "lru")
    report = simulate(trace, what_if.at(max(budget, 1)), "lru", lookahead=what_if.lookahead)
    assert view.busy["compute"] == pytest.approx(report.compute_s)
    assert view.busy["load"] == pytest.approx(report.links[0].towards_s)
    assert view.busy["store"] == pytest.approx(report.links[0].away_s)
    assert view.waiting_seconds == report.stall_s
    assert view.seconds == pytest.approx(report.total_s + report.tail_s)
    names = [lane.name for lane in view.lanes]
    assert names == list(view.busy)
    assert names[:3] == ["compute", "load", "store"]
    machine = what_if.at(max(budget, 1))
    for tier, link in zip(machine.tiers[2:], report.links[1:], strict=True):
        assert view.busy.get(f"{tier.name} read", 0) == pytest.approx(link.towards_s)
        assert view.busy.get(f"{tier.name} write", 0) == pytest.approx(link.away_s)
    for lane in view.lanes:
        edges = [edge for span in lane.spans for edge in (span.begin, span.end)]
        assert len(lane.spans) <= MOST_POINTS
        assert (np.diff(edges) >= -1e-12).all()
    assert max(view.occupancy.bytes, default=0) <= max(budget, 1, report.peak_bytes)
    assert view.left_out >= 0


def test_a_span_that_is_several_says_so() -> None:
    trace = Trace.from_arrays(np.arange(4000), 1000, ops=["mul"] * 4000, flops=np.full(4000, 1e6))
    view = timeline_view(trace, 10_000)
    compute, load = view.lanes[:2]
    assert len(compute.spans) <= MOST_POINTS >= len(load.spans)
    spans = sum(len(lane.spans) for lane in view.lanes)
    assert view.left_out == 4000 * (len(view.lanes) - 1) - spans  # no stores
    assert sum(span.bytes or 0 for span in load.spans) == 4000 * 1000
    assert any(span.label.endswith("operations") for span in compute.spans)
    window = timeline_view(trace, 10_000, window=(view.seconds / 2, view.seconds / 2 + 1e-4))
    assert window.left_out < view.left_out
    assert all(span.end >= window.begin and span.begin <= window.end for span in window.lanes[0].spans)


def test_who_needs_the_schedule() -> None:
    knowing = {name for name in ("belady", "belady_size", "planner", "lru", "arc") if needs_schedule(name)}
    assert knowing == {"belady", "belady_size", "planner"}


@given(roled())
def test_cells_of_scores_hold_every_access_of_the_shown_tensors(trace: Trace) -> None:
    view = scores_view(trace)
    accessed = trace.buffer[trace.is_access].tolist()
    distances, scores = stack_distances(trace).buffers.tolist(), unit_scores(trace, "heuristic").tolist()
    assert view.tensors_in_all == len(set(accessed))
    assert view.tensors == [trace.names[one] for one in dict.fromkeys(accessed)][: len(view.tensors)]
    expected: dict[tuple[str, int], list[float]] = {}
    for buffer, distance, score in zip(accessed, distances, scores, strict=True):
        row = 0
        while distance >= 2**row - 1:
            row += 1
        expected.setdefault((trace.names[buffer], row), []).append(score)
    found = {(view.tensors[cell.tensor], cell.row): cell for cell in view.cells}
    assert found.keys() == expected.keys()
    for key, cell in found.items():
        assert cell.accesses == len(expected[key])
        assert cell.score == pytest.approx(np.mean(expected[key]))
