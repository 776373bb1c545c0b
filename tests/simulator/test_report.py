"""What a report tells as JSON: never an infinity or a NaN, which JSON does not have."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelera.memory import Hierarchy
from accelera.simulator import Report, advise, gated, simulate, sweep
from accelera.trace import Trace
from tests.simulator.busy import machines
from tests.simulator.traces import wild_traces


def as_strict_json(values: object) -> str:
    return json.dumps(values, allow_nan=False)


@given(trace=wild_traces(), machine=machines(), policy=st.sampled_from(["lru", "mru", "belady"]))
def test_a_replay(trace: Trace, machine: Hierarchy, policy: str) -> None:
    as_strict_json(simulate(trace, machine, policy, lookahead=2).to_dict(bound=True))


@pytest.mark.parametrize("sizes", [[], [0, 0, 0], [4, 8, 4]])
def test_traces_of_nothing(sizes: list[int]) -> None:
    trace = Trace.from_arrays([0, 1, 0][: len(sizes)], sizes)
    for capacity in (0, "50%", 8):
        as_strict_json(simulate(trace, capacity).to_dict(bound=True))
        as_strict_json(simulate(trace, capacity).as_seed_metrics())
        as_strict_json(advise(trace, capacity).to_dict())
        as_strict_json(gated(trace, "heuristic", capacity).to_dict())
    as_strict_json(sweep(trace, ["lru", "belady"], [0, 4, 8]).to_dict())


def test_bytes_moved_without_need_have_no_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    report = simulate(Trace.from_arrays([0, 1, 0], 4), 4)
    monkeypatch.setattr(Report, "lower_bound_bytes", 0)
    assert report.regret == float("inf")
    assert report.to_dict(bound=True)["regret"] is None
