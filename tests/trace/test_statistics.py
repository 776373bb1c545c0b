"""What a trace is like: each figure against a definition written out."""

from __future__ import annotations

import json
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given

from accelera import Trace
from accelera.trace import Kind, Occupancy, statistics
from accelera.trace._internal import (
    largest_op,
    reuse_entropy,
    stack_distances,
    temporal_locality,
    working_sets,
)
from tests.trace.examples import described_traces, step_by_step, traces


def alive_by_hand(trace: Trace) -> list[set[int]]:
    """The buffers alive at the start and after each event: the definition."""
    first: dict[int, int] = {}
    for buffer, kind in zip(trace.buffer.tolist(), trace.kind.tolist(), strict=True):
        if kind in (Kind.READ, Kind.WRITE, Kind.FREE):
            first.setdefault(buffer, kind)
    alive = {buffer for buffer in range(trace.buffer_count) if first.get(buffer) != Kind.WRITE}
    found = [alive]
    for buffer, kind in zip(trace.buffer.tolist(), trace.kind.tolist(), strict=True):
        if kind == Kind.FREE:
            alive = alive - {buffer}
        elif kind <= Kind.WRITE:
            alive = alive | {buffer}
        found.append(alive)
    return found


@given(traces())
def test_live_bytes(trace: Trace) -> None:
    occupancy = Occupancy(trace)
    alive = alive_by_hand(trace)
    sizes = [int(trace.size_bytes[list(each)].sum()) for each in alive]
    assert occupancy.after_events().tolist() == sizes[1:]
    assert occupancy.peak_bytes == max(sizes)
    assert set(np.flatnonzero(occupancy.alive_at_peak).tolist()) == alive[occupancy.peak_event + 1]
    assert sizes[occupancy.peak_event + 1] == max(sizes)
    assert sum(occupancy.peak_by_role().values()) == max(sizes)
    assert sum(each.size_bytes for each in occupancy.top_live(100)) == max(sizes)


@given(described_traces())
def test_live_bytes_by_role_and_step(trace: Trace) -> None:
    occupancy = Occupancy(trace)
    total = occupancy.per_step()
    assert len(total) == trace.step_count
    by_role = [occupancy.per_step(role) for role in sorted(set(trace.roles))]
    if by_role:
        np.testing.assert_array_equal(np.sum(by_role, axis=0), total)
        assert total.max() == occupancy.peak_bytes or trace.kind[0] == Kind.FREE


def test_the_course_of_live_bytes() -> None:
    """Read first: there from the start (10 + 30). Written: from then on. An idle step: as it was."""
    occupancy = Occupancy(step_by_step())
    assert occupancy.per_step().tolist() == [60, 60, 60, 40, 45, 45]
    assert occupancy.per_step("activation").tolist() == [20, 20, 20, 0, 0, 0]
    assert occupancy.peak_by_role() == {"": 30, "activation": 20, "weight": 10}
    assert [each.name for each in occupancy.top_live(2)] == ['b,"x"', "b"]


@given(traces())
def test_the_hard_floor(trace: Trace) -> None:
    by_step: dict[int, set[int]] = {}
    for step, buffer in zip(trace.step[trace.is_access].tolist(), trace.accessed.tolist(), strict=True):
        by_step.setdefault(step, set()).add(buffer)
    sizes = {step: int(trace.size_bytes[list(each)].sum()) for step, each in by_step.items()}
    floor = largest_op(trace)
    assert floor.size_bytes == max(sizes.values(), default=0)
    assert sizes.get(floor.step, 0) == floor.size_bytes
    assert working_sets(trace, 1).sum() == trace.size_bytes[np.unique(trace.accessed)].sum()


@given(traces())
def test_entropy_and_locality(trace: Trace) -> None:
    distances = stack_distances(trace)
    counts = Counter(distances.reuses.tolist())
    shares = [count / len(distances.reuses) for count in counts.values()]
    assert reuse_entropy(distances) == pytest.approx(-sum(share * math.log2(share) for share in shares))
    near = sum(count for distance, count in counts.items() if distance < 5)
    assert temporal_locality(distances) == pytest.approx(near / max(len(distances.reuses), 1))


def test_entropy_of_known_cases() -> None:
    loop = stack_distances(Trace.from_arrays([0, 1, 2] * 5, 1))
    assert (reuse_entropy(loop), temporal_locality(loop)) == (0, 1)
    assert temporal_locality(loop, near=2) == 0
    mixed = stack_distances(Trace.from_arrays([0, 0, 1, 0], 1))
    assert reuse_entropy(mixed) == 1


@given(described_traces())
def test_statistics_of_anything(trace: Trace) -> None:
    found = statistics(trace)
    assert found.counts.reads + found.counts.writes == found.counts.accesses == trace.access_count
    used = int(trace.size_bytes[np.unique(trace.accessed)].sum())
    assert found.counts.compulsory_bytes + found.counts.created_bytes == used
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False)) == found.to_dict()
    assert found.table()
    assert found.live_bytes.max(initial=0) <= found.peak.size_bytes


def test_figures_of_an_example() -> None:
    found = statistics(step_by_step(), top=1).to_dict()
    assert found["counts"] == {
        "accesses": 5,
        "reads": 3,
        "writes": 2,
        "buffers": 4,
        "steps": 6,
        "read_bytes": 50,
        "written_bytes": 25,
        "footprint_bytes": 65,
        "compulsory_bytes": 40,
        "created_bytes": 25,
    }
    assert found["peak"] == {
        "size_bytes": 60,
        "step": 0,
        "op": "matmul",
        "by_role": {"": 30, "activation": 20, "weight": 10},
        "top_live": [{"name": 'b,"x"', "role": "", "size_bytes": 30}],
    }
    assert found["floor"] == {"size_bytes": 40, "step": 2, "op": "add"}
    assert found["reuse"]["distances"] == [
        {"from": 0, "to": 0, "reuses": 0},
        {"from": 1, "to": 1, "reuses": 1},
    ]
    assert found["working_set_bytes"] == [30, 0, 40, 0, 5, 0]


def test_the_table_says_what_there_is() -> None:
    text = statistics(step_by_step()).table()
    for word in ("model           CNN", "60 B in step 0 (matmul)", "hard floor      40 B in step 2 (add)"):
        assert word in text
    assert "1.0000" in text


def test_a_sample_says_what_it_cannot_tell() -> None:
    ids = np.random.default_rng(0).integers(0, 500, 5000)
    found = statistics(Trace.from_arrays(ids, 64), sample=0.2)
    assert found.reuse is None
    assert found.to_dict()["reuse"] is None
    assert "from 20.00% of the buffers: miss ratios are likely off by 0.0" in found.table()


def test_nothing_is_up_to_nothing() -> None:
    text = statistics(Trace.from_arrays([], [])).table()
    assert "up to 0 B" in text
    assert "up to 1 B" not in text
