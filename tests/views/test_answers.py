"""The answers of the first screen, for the workloads that everybody asks about first."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from accelera.errors import BudgetExceededError, UnknownNameError
from accelera.memory import Compute
from accelera.simulator import generate_synthetic_trace
from accelera.trace import Occupancy, Trace
from accelera.views import MeasuredTrace, WhatIf, fit_view
from accelera.views._internal import (
    CARDS,
    MACHINES,
    MODELS,
    comparison_view,
    curves_view,
    least_per_unit,
    presets,
    timeline_view,
)

GB = 10**9
TRAIN: dict[str, Any] = {
    "num_layers": 24,
    "hidden_size": 2048,
    "batch_size": 8,
    "seq_length": 1024,
    "mode": "training",
    "dtype": "bfloat16",
    "reuse_probability": 0.0,
}
GENERATE: dict[str, Any] = {
    "num_layers": 32,
    "hidden_size": 4096,
    "batch_size": 1,
    "seq_length": 1024,
    "mode": "decode",
    "steps": 4,
    "block_tokens": 128,
    "dtype": "bfloat16",
    "reuse_probability": 0.0,
}
SMALL: dict[str, Any] = {"num_layers": 4, "hidden_size": 256, "batch_size": 4, "seq_length": 256}


@pytest.fixture(scope="module")
def training() -> MeasuredTrace:
    return MeasuredTrace(generate_synthetic_trace(**TRAIN))


@pytest.fixture(scope="module")
def generation() -> MeasuredTrace:
    return MeasuredTrace(generate_synthetic_trace(**GENERATE))


def test_training_1_3b_needs_39_6_gb(training: MeasuredTrace) -> None:
    view = fit_view(training, 24 * GB)
    verdict = view.verdict
    assert verdict.headline == "Training a 1.3B model needs 39.6 GB. You are 15.6 GB short."
    assert (verdict.per, verdict.units) == ("step", 2)
    assert verdict.moved_bytes == pytest.approx(20.8 * GB, rel=0.01)
    assert verdict.ratio == pytest.approx(1.04, abs=0.01)
    assert view.occupancy.peak.op == "cross entropy backward"
    labels = [role.label for role in view.occupancy.roles]
    assert labels == ["activations", "optimizer", "weights", "gradients", "inputs"]
    names = [phase.name for phase in view.occupancy.phases]
    assert names == ["forward", "backward", "update"] * 2
    assert view.occupancy.phases[1].begin == view.occupancy.peak.step


def test_generating_with_7b_in_12_gb_is_2_gb_short(generation: MeasuredTrace) -> None:
    view = fit_view(generation, 12 * GB, WhatIf(link_bytes_per_s=16e9))
    verdict = view.verdict
    assert verdict.headline == "Generating with a 7B model needs 14.0 GB. You are 2.0 GB short."
    assert (verdict.per, verdict.units, verdict.best_policy) == ("token", 4, "belady")
    assert [row.policy for row in view.comparison.policies] == ["belady", "gdsf", "arc", "lru"]
    assert verdict.ratio is not None
    assert 7 < verdict.ratio < 8
    assert verdict.sentence == (
        "It still runs, 7.2× as long, moving 1.8 GB per token under Belady, which must know the schedule; "
        "LRU would move 14.0 GB, 7.8× as much."
    )
    assert view.comparison.first_load_bytes == pytest.approx(13.1 * GB, rel=0.01)
    assert [phase.name for phase in view.occupancy.phases] == [
        "prompt",
        *(f"token {n}" for n in (1, 2, 3, 4)),
    ]


def test_seconds_are_those_of_a_token_without_prompt_and_first_load(generation: MeasuredTrace) -> None:
    what_if = WhatIf(link_bytes_per_s=16e9)
    verdict = fit_view(generation, 12 * GB, what_if).verdict
    longer = generate_synthetic_trace(**{**GENERATE, "steps": 16})
    assert verdict.seconds == pytest.approx(fit_view(longer, 12 * GB, what_if).verdict.seconds, rel=0.05)
    assert verdict.seconds is not None
    moving = (verdict.moved_bytes or 0) / 16e9
    assert verdict.seconds == pytest.approx(verdict.compute_seconds + moving, rel=0.05)


def test_the_least_is_told_when_known(generation: MeasuredTrace) -> None:
    least = least_per_unit(generation, 12 * GB)
    view = fit_view(generation, 12 * GB, lower_bound_bytes=least)
    assert (
        least == view.verdict.least_bytes == view.comparison.least_bytes == pytest.approx(1.75 * GB, rel=0.01)
    )
    assert view.verdict.sentence.endswith(" No schedule moves less than 1.7 GB.")


def test_what_fits_says_what_is_left(generation: MeasuredTrace) -> None:
    verdict = fit_view(generation, 16 * GB).verdict
    assert verdict.headline == "Generating with a 7B model needs 14.0 GB. It fits, with 2.0 GB left."
    assert verdict.sentence == "Nothing has to be moved after the first load, whatever the policy."
    exactly = fit_view(generation, generation.peak_bytes).verdict
    assert exactly.headline == "Generating with a 7B model needs 14.0 GB. It just fits."
    almost = fit_view(generation, generation.peak_bytes - 1).verdict
    assert almost.headline == "Generating with a 7B model needs 14.0 GB. You are 1 B short."


def test_loading_ahead_may_move_what_fits(training: MeasuredTrace) -> None:
    verdict = fit_view(training, training.peak_bytes, WhatIf(lookahead=4)).verdict
    assert verdict.fits
    assert verdict.sentence.startswith("Everything fits, but loading operations ahead takes room")


def test_below_the_floor_no_schedule_runs(generation: MeasuredTrace) -> None:
    view = fit_view(generation, GB // 5)
    assert not view.verdict.runs
    assert view.comparison.policies == []
    assert view.verdict.sentence == (
        "No schedule runs in 200 MB: the operands of one operation (logits) take 271 MB together, and that "
        "is the least."
    )
    for budget in (0, 1, GB // 5, generation.floor_bytes - 1):
        with pytest.raises(BudgetExceededError, match="no schedule runs in") as refused:
            timeline_view(generation, budget)
        assert refused.value.needed_bytes == generation.floor_bytes
        assert "(logits) needs 271 MB; take at least" in str(refused.value)
    assert timeline_view(generation, generation.floor_bytes).seconds


def test_who_beats_belady_is_explained() -> None:
    trace = generate_synthetic_trace(**TRAIN)
    compared = comparison_view(trace, 24 * GB, WhatIf(lookahead=2), ["belady", "arc"])
    assert compared.policies[0].policy == "arc"
    assert any(note.startswith("ARC moves fewer bytes than Belady here") for note in compared.notes)
    assert compared.notes[0].startswith("Belady needs to know the schedule")
    alone = comparison_view(trace, 24 * GB, policies=["lru"])
    assert alone.notes == []


def test_a_straight_curve_has_no_knee(training: MeasuredTrace, generation: MeasuredTrace) -> None:
    assert curves_view(generation).knee_bytes is None
    bent = curves_view(training)
    assert bent.knee_bytes == pytest.approx(12.6 * GB, rel=0.1)
    fewest = np.array(min(bent.miss_ratio.values(), key=sum))
    if bent.miss_knee_bytes is not None:
        at = bent.capacities.index(bent.miss_knee_bytes)
        chord = np.interp(bent.capacities, [bent.capacities[0], bent.capacities[-1]], [fewest[0], fewest[-1]])
        assert chord[at] - fewest[at] == pytest.approx(max(chord - np.minimum.accumulate(fewest)))
    assert (bent.capacities[0], bent.capacities[-1]) == (training.floor_bytes, training.peak_bytes)
    assert [bent.moved[policy][-1] for policy in bent.moved] == [0, 0, 0, 0]


def test_loading_ahead_is_told_where_it_helps(training: MeasuredTrace) -> None:
    verdict = fit_view(training, 24 * GB).verdict
    assert verdict.ahead is not None
    assert verdict.ahead.slowdown < (verdict.slowdown or 0) * 0.97
    assert f"when {verdict.ahead.lookahead} operations load ahead" in verdict.sentence
    assert fit_view(training, 24 * GB, WhatIf(lookahead=8)).verdict.ahead is None


def test_other_workloads_are_named_too() -> None:
    cases = {
        "Running a CNN of 17.7M parameters": {"model_type": "CNN", "num_layers": 2},
        "Training an MLP of 4.2M parameters": {"model_type": "MLP", "num_layers": 4, "mode": "training"},
        "Generating with a mixture of experts of": {"model_type": "MoE", "num_layers": 1, "mode": "decode"},
    }
    for begin, workload in cases.items():
        headline = fit_view(
            generate_synthetic_trace(**dict[str, Any]({"batch_size": 1, **workload})), GB
        ).verdict.headline
        assert headline.split(" of ")[0] == begin.split(" of ")[0]
    anonymous = Trace.from_arrays([0, 1, 0], [100, 50, 100])
    assert fit_view(anonymous, 120).verdict.headline == "This trace needs 150 B. You are 30 B short."


def test_an_empty_trace_has_empty_pictures() -> None:
    trace = Trace.from_arrays([], 0)
    view = fit_view(trace, 10)
    assert view.verdict.fits
    assert view.occupancy.steps == view.occupancy.total == view.occupancy.roles == []
    assert timeline_view(trace, 10).lanes[0].spans == []
    assert curves_view(trace).moved["lru"] == [0]


def test_all_views_are_json(generation: MeasuredTrace) -> None:
    budget = 12 * GB
    for view in (
        fit_view(generation, budget),
        curves_view(generation, points=3),
        timeline_view(generation, budget),
    ):
        content = json.dumps(view.to_dict(), allow_nan=False)
        assert len(content) < 200_000


def test_a_window_after_the_end_is_empty(generation: MeasuredTrace) -> None:
    view = timeline_view(generation, 12 * GB, window=(100.0, float("inf")))
    assert not any(lane.spans for lane in view.lanes)
    assert (view.begin, view.end, view.left_out) == (100, 100, 0)


def test_a_link_slows_and_moves_no_other_bytes(generation: MeasuredTrace) -> None:
    slow, fast = (
        fit_view(generation, 12 * GB, WhatIf(link_bytes_per_s=rate)).verdict for rate in (8e9, 64e9)
    )
    assert slow.moved_bytes == fast.moved_bytes
    assert (slow.seconds or 0) > (fast.seconds or 0) * 3


def test_unknown_names_are_refused(generation: MeasuredTrace) -> None:
    with pytest.raises(UnknownNameError, match="belady"):
        fit_view(generation, 12 * GB, policies=["beladi"])
    with pytest.raises(UnknownNameError, match="gpu-24gb"):
        fit_view(generation, 12 * GB, WhatIf("gpu-24"))


def test_presets_are_what_is_generated() -> None:
    for model in MODELS[:4]:
        trace = generate_synthetic_trace(
            num_layers=model.num_layers,
            hidden_size=model.hidden_size,
            batch_size=1,
            seq_length=8,
            dtype="float16",
        )
        weights = sum(
            size for size, role in zip(trace.size_bytes, trace.roles, strict=True) if role == "weight"
        )
        assert model.parameters == weights // 2
    assert [card.bytes for card in CARDS] == sorted(card.bytes for card in CARDS)
    assert {card.hierarchy for card in CARDS} <= set(MACHINES)
    assert json.dumps(presets())


def test_roles_that_are_nothing_are_shown_together() -> None:
    trace = generate_synthetic_trace(**SMALL, mode="training")
    shown = fit_view(trace, GB).occupancy
    assert "input" not in {role.role for role in shown.roles}
    assert shown.roles[-1].role == "other"
    assert shown.peak.bytes == Occupancy(trace).peak_bytes


def test_arithmetic_that_takes_no_time_has_no_slowdown() -> None:
    trace = Trace.from_arrays([0, 1, 0, 1], 100, seconds=[0.0] * 4)
    verdict = fit_view(trace, 100).verdict
    assert (verdict.compute_seconds, verdict.slowdown) == (0, None)
    assert "as long" not in verdict.sentence
    assert MeasuredTrace(trace).unit_seconds(Compute(1e9)) == 0
