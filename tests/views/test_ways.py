"""Ways out and room left: all of them are made here again, and fit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelera.simulator import generate_synthetic_trace
from accelera.trace import Occupancy
from accelera.views._internal import CARDS, WaysView, ways_view
from tests.views.test_answers import GB, GENERATE, TRAIN

OF_A_CARD = {"card", "budget", "link_bytes_per_s", "hierarchy"}


def needs(workload: dict[str, Any]) -> int:
    return Occupancy(generate_synthetic_trace(**workload)).peak_bytes


def asked(workload: dict[str, Any], budget: int) -> WaysView:
    return ways_view(generate_synthetic_trace(**workload), budget, workload)


def assert_true(view: WaysView, workload: dict[str, Any], budget: int) -> None:
    assert view.fits == (needs(workload) <= budget)
    assert not (view.ways and view.room)
    for way in view.ways:
        assert "fits" in way.label
        if way.kind == "card":
            assert set(way.changes) == OF_A_CARD
            assert int(way.changes["budget"]) >= needs(workload) == way.needs_bytes
        else:
            changed = {**workload, **way.changes}
            assert needs(changed) <= way.needs_bytes <= budget
            assert all(changed[name] != workload.get(name) for name in way.changes)
    for room in view.room:
        field = {"batch": "batch_size", "context": "seq_length"}[room.kind]
        assert needs({**workload, field: room.largest}) <= room.needs_bytes <= budget
        assert room.largest > workload[field]


def test_training_1_3b_in_24_gb() -> None:
    view = asked(TRAIN, 24 * GB)
    assert [way.label for way in view.ways] == [
        "Batch 3 fits: 22.9 GB",
        "Context 512 fits: 23.0 GB",
        "40 GB card fits",
    ]
    assert_true(view, TRAIN, 24 * GB)
    assert needs({**TRAIN, "batch_size": 4}) > 24 * GB
    assert needs({**TRAIN, "seq_length": 640}) > 24 * GB


def test_training_1_3b_in_48_gb_has_room() -> None:
    view = asked(TRAIN, 48 * GB)
    assert view.ways == []
    assert_true(view, TRAIN, 48 * GB)
    assert [each.largest for each in view.room] == [10, 1152]
    assert needs({**TRAIN, "batch_size": 11}) > 48 * GB


def test_generation_fits_a_card() -> None:
    assert [way.label for way in asked(GENERATE, 12 * GB).ways] == ["16 GB card fits"]
    assert_true(asked(GENERATE, 12 * GB), GENERATE, 12 * GB)
    assert_true(asked(GENERATE, 16 * GB), GENERATE, 16 * GB)


def test_a_narrower_type_is_offered() -> None:
    workload = {**GENERATE, "dtype": "float32", "num_layers": 8}
    view = asked(workload, 5 * GB)
    assert {way.kind: way.changes for way in view.ways}["dtype"] == {"dtype": "bfloat16"}
    assert_true(view, workload, 5 * GB)


def test_batch_and_context_together_where_neither_suffices() -> None:
    workload = {**TRAIN, "num_layers": 4, "batch_size": 64, "seq_length": 4096}
    one, short = (needs({**workload, **each}) for each in ({"batch_size": 1}, {"seq_length": 128}))
    view = asked(workload, min(one, short) - 1)
    both = [way for way in view.ways if len(way.changes) == 2]
    assert [set(way.changes) for way in both] == [{"batch_size", "seq_length"}]
    assert_true(view, workload, min(one, short) - 1)


def test_without_the_workload_there_are_only_cards() -> None:
    trace = generate_synthetic_trace(**TRAIN)
    view = ways_view(trace, 24 * GB)
    assert [way.kind for way in view.ways] == ["card"]
    assert ways_view(trace, 48 * GB).room == []


def test_no_way_is_said() -> None:
    workload = {**TRAIN, "num_layers": 4, "hidden_size": 16_384, "batch_size": 1, "seq_length": 128}
    view = asked(workload, GB)
    assert needs(workload) <= CARDS[-1].bytes or not view.ways
    workload = {**workload, "num_layers": 64}
    view = asked(workload, GB)
    assert view.ways == []
    assert view.sentence.startswith("No usual card holds")


WORKLOADS = st.fixed_dictionaries(
    {
        "model_type": st.sampled_from(["Transformer", "CNN", "MLP", "MoE"]),
        "num_layers": st.integers(1, 3),
        "hidden_size": st.sampled_from([64, 192]),
        "batch_size": st.integers(1, 9),
        "seq_length": st.sampled_from([32, 128, 300, 1024]),
        "mode": st.sampled_from(["inference", "training", "decode"]),
        "steps": st.integers(1, 4),
        "dtype": st.sampled_from(["float64", "float32", "float16"]),
        "reuse_probability": st.sampled_from([0.0, 0.5]),
        "block_tokens": st.sampled_from([1, 16, 100]),
    }
).filter(lambda each: each["mode"] != "decode" or each["model_type"] in ("Transformer", "MoE"))


@settings(max_examples=40)
@given(WORKLOADS, st.floats(0.2, 2.5))
def test_every_way_out_fits(workload: dict[str, Any], share: float) -> None:
    if workload["model_type"] == "CNN":
        workload = {**workload, "seq_length": 32}
    budget = int(needs(workload) * share)
    assert_true(asked(workload, budget), workload, budget)


@pytest.mark.parametrize("share", [0.5, 2.0])
def test_the_same_question_has_the_same_answer(share: float) -> None:
    workload = {**TRAIN, "num_layers": 2, "hidden_size": 256}
    budget = int(needs(workload) * share)
    assert asked(workload, budget) == asked(workload, budget)
