"""The laws of a replay's timeline: it adds up to the report, and nothing happens before it can."""

from __future__ import annotations

import pickle
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelera import generate_synthetic_trace, simulate
from accelera.memory import Hierarchy, Tier
from accelera.simulator import Report
from accelera.simulator._internal import Timeline
from accelera.trace import Kind, Trace
from tests.policy.plugins import OrderedLru
from tests.simulator.busy import machines, traces
from tests.simulator.traces import wild_records, wild_traces

NAMES = ("lru", "fifo", "belady", "scored")
any_trace = traces() | wild_traces() | wild_records()


def recorded(trace: Trace, machine: Hierarchy | str | int, policy: str, **options: object) -> Report:
    """Replay twice: the record changes nothing."""
    report = simulate(trace, machine, policy, timeline=True, **options)  # type: ignore[arg-type]
    plain = simulate(trace, machine, policy, **options)  # type: ignore[arg-type]
    assert plain.timeline is None
    assert report.to_dict() == plain.to_dict()
    return report


def of(report: Report) -> Timeline:
    assert report.timeline is not None
    return report.timeline


def assert_adds_up(report: Report) -> None:
    """Raise unless intervals, bytes and ends are those of the report."""
    timeline = of(report)
    assert (timeline.step_end_s - timeline.step_begin_s).sum() == pytest.approx(report.compute_s)
    assert timeline.step_end_s.max(initial=0) == pytest.approx(report.total_s)
    last = max(timeline.step_end_s.max(initial=0), timeline.move_end_s.max(initial=0))
    assert last == pytest.approx(report.total_s + report.tail_s)
    for index, link in enumerate(report.links):
        for away, told in (
            (False, (link.towards_moves, link.towards_bytes, link.towards_s)),
            (True, (link.away_moves, link.away_bytes, link.away_s)),
        ):
            rows = timeline.moves(index, away=away)
            took = (timeline.move_end_s - timeline.move_begin_s)[rows].sum()
            assert (len(rows), timeline.move_bytes[rows].sum(), took) == pytest.approx(told)
    assert len(timeline.move_link) == sum(link.towards_moves + link.away_moves for link in report.links)
    assert (report.trace.size_bytes[timeline.move_buffer] == timeline.move_bytes).all()


def assert_one_after_the_other(report: Report) -> None:
    """Raise where two steps overlap, or two transfers of one direction, or of a link that has but one."""
    timeline = of(report)
    assert (timeline.step_begin_s[1:] >= timeline.step_end_s[:-1]).all()
    for index, tier in enumerate(report.hierarchy.tiers[1:]):
        towards, away = timeline.moves(index, away=False), timeline.moves(index, away=True)
        queues = [towards, away] if tier.duplex else [np.sort(np.concatenate([towards, away]))]
        for rows in queues:
            assert (timeline.move_begin_s[rows][1:] >= timeline.move_end_s[rows][:-1]).all()
            assert (timeline.move_end_s[rows] >= timeline.move_begin_s[rows]).all()


def assert_operands_arrived(report: Report, recompute: bool) -> None:
    """Raise where a step begins before a transfer into the first tier that it or an earlier one asked for."""
    timeline, trace = of(report), report.trace
    loads = timeline.moves(0, away=False)
    arrived: dict[int, float] = defaultdict(float)
    for row in loads.tolist():
        step = int(timeline.move_step[row])
        arrived[step] = max(arrived[step], float(timeline.move_end_s[row]))
    begins = {int(s): float(b) for s, b in zip(timeline.step, timeline.step_begin_s, strict=True)}
    latest = 0.0
    for step in sorted(begins):
        latest = max(latest, arrived.pop(step, 0.0))
        assert begins[step] >= latest
    assert not arrived
    if not recompute:
        reads = trace.kind == Kind.READ
        operands = set(zip(trace.step[reads].tolist(), trace.buffer[reads].tolist(), strict=True))
        asked = zip(timeline.move_step[loads].tolist(), timeline.move_buffer[loads].tolist(), strict=True)
        assert set(asked) <= operands


def assert_bytes_over_time(report: Report) -> None:
    timeline = of(report)
    assert timeline.resident_bytes.max() == report.peak_bytes <= report.tiers[0].capacity_bytes
    assert timeline.resident_bytes.min() == 0 == timeline.resident_since_s[0]
    assert (np.diff(timeline.resident_since_s) >= 0).all()


def assert_lawful(report: Report, *, recompute: bool = False) -> None:
    assert_adds_up(report)
    assert_one_after_the_other(report)
    assert_operands_arrived(report, recompute)
    assert_bytes_over_time(report)


@given(
    trace=any_trace,
    machine=machines(),
    policy=st.sampled_from(NAMES),
    lookahead=st.integers(0, 3),
    recompute=st.booleans(),
)
def test_any_replay(trace: Trace, machine: Hierarchy, policy: str, lookahead: int, recompute: bool) -> None:
    report = recorded(trace, machine, policy, lookahead=lookahead, recompute=recompute)
    assert_lawful(report, recompute=recompute)


def test_what_is_known_of_a_small_replay() -> None:
    """Two buffers of 4 bytes in a tier of 4, over a link of one byte per second; 3 s of arithmetic each."""
    trace = Trace.from_arrays(
        [0, 0, 1], 4, kinds=[Kind.READ, Kind.WRITE, Kind.READ], steps=[0, 0, 1], seconds=[3.0, 3.0]
    )
    machine = Hierarchy((Tier("device", 4, 1.0), Tier("host", 100, 1.0)))
    timeline = of(simulate(trace, machine, "lru", timeline=True))
    assert timeline.step.tolist() == [0, 1]
    assert timeline.step_begin_s.tolist() == [4, 15]
    assert timeline.step_end_s.tolist() == [7, 18]
    assert timeline.move_away.tolist() == [False, True, False]
    assert timeline.move_buffer.tolist() == [0, 0, 1]
    assert timeline.move_step.tolist() == [0, 1, 1]
    assert timeline.move_begin_s.tolist() == [0, 7, 11]
    assert timeline.move_end_s.tolist() == [4, 11, 15]
    assert timeline.resident_since_s.tolist() == [0, 0, 11]
    assert timeline.resident_bytes.tolist() == [0, 4, 4]


@pytest.mark.parametrize("machine", ["copilot", "laptop", "50%"])
def test_a_whole_model(machine: str) -> None:
    trace = generate_synthetic_trace("Transformer", num_layers=2, mode="training", seed=0)
    assert_lawful(recorded(trace, machine, "belady", lookahead=2))


def test_an_empty_trace() -> None:
    timeline = of(recorded(Trace.from_arrays([], 1), 100, "lru"))
    assert (len(timeline.step), len(timeline.move_link), timeline.resident_bytes.tolist()) == (0, 0, [0])


def test_a_policy_of_ones_own_and_a_copy_in_another_process() -> None:
    trace = generate_synthetic_trace("MLP", num_layers=3, seed=0)
    report = simulate(trace, "30%", OrderedLru(), timeline=True)
    assert_lawful(report)
    again = pickle.loads(pickle.dumps(report.timeline))
    np.testing.assert_array_equal(again.move_begin_s, of(report).move_begin_s)
    with pytest.raises(ValueError, match="read-only"):
        of(report).step_end_s[0] = 0
