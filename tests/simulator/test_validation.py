"""Validation: entropy, locality, sizes and lives, each against a definition or a trace made to fail."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelera import validate_trace
from accelera.simulator import (
    calculate_reuse_entropy,
    calculate_temporal_locality,
    generate_synthetic_trace,
    validate_tensor_size_distribution,
)
from accelera.simulator._internal import WORKLOADS
from accelera.simulator.validation import reference_sizes
from accelera.trace import Kind, Trace

READ, WRITE, FREE = Kind.READ, Kind.WRITE, Kind.FREE


def distances(ids: list[int]) -> list[int]:
    """Distinct others since the last use, by looking."""
    found = []
    for index, each in enumerate(ids):
        earlier = [other for other in range(index) if ids[other] == each]
        if earlier:
            found.append(len(set(ids[earlier[-1] + 1 : index])))
    return found


@settings(max_examples=60, deadline=None)
@given(ids=st.lists(st.integers(0, 12), max_size=80), near=st.integers(1, 9))
def test_entropy_and_locality_by_their_definitions(ids: list[int], near: int) -> None:
    found = validate_trace(Trace.from_arrays(ids, 8), near=near)
    reuses = distances(ids)
    shares = np.unique(reuses, return_counts=True)[1] / max(len(reuses), 1)
    assert found.reuses == len(reuses)
    assert found.reuse_entropy_bits == pytest.approx(-(shares * np.log2(shares)).sum())
    assert 0 <= found.reuse_entropy_normalised <= 1 + 1e-12
    wanted = np.mean([each < near for each in reuses]) if reuses else 0
    assert found.temporal_locality == pytest.approx(wanted)


def test_two_distances_equally_often_are_one_bit() -> None:
    trace = Trace.from_arrays([0, 0, 1, 0, 0, 1, 1], 8)  # distances 0, 1, 0, 1, 0 …
    assert distances([0, 0, 1, 0, 0, 1, 1]) == [0, 1, 0, 1, 0]
    assert calculate_reuse_entropy(trace) == pytest.approx(0.971, abs=1e-3)
    assert calculate_reuse_entropy(Trace.from_arrays([0, 0, 1, 0], 8)) == 1


def test_all_different_distances_are_normalised_to_one() -> None:
    trace = Trace.from_arrays([0, 0, 1, 0, 2, 1, 0], 8)
    assert distances([0, 0, 1, 0, 2, 1, 0]) == [0, 1, 2, 2]
    assert validate_trace(Trace.from_arrays([0, 0, 1, 0], 8)).reuse_entropy_normalised == 1
    assert validate_trace(trace).reuse_entropy_normalised == pytest.approx(1.5 / 2)


def test_the_seeds_names_take_tables_too() -> None:
    trace = generate_synthetic_trace(num_layers=2)
    table = trace.to_pandas()
    assert calculate_reuse_entropy(table) == calculate_reuse_entropy(trace)
    assert calculate_temporal_locality(table) == calculate_temporal_locality(trace)
    assert validate_tensor_size_distribution(table) == validate_tensor_size_distribution(trace)


def test_sizes_of_a_captured_model_are_near_itself() -> None:
    for name, sizes in reference_sizes().items():
        found = validate_tensor_size_distribution(Trace.from_arrays(np.arange(len(sizes)), sizes))
        assert found.nearest == name
        assert found.nearest_statistic < 0.05


def test_the_statistic_is_the_largest_gap_between_the_distributions() -> None:
    sizes = np.array([1, 1 << 10, 1 << 20, 1 << 24, 1 << 24])
    found = validate_tensor_size_distribution(Trace.from_arrays(np.arange(5), sizes))
    reference = np.concatenate(list(reference_sizes().values()))
    points = np.concatenate([reference, sizes])
    below = [np.mean(sample[:, None] <= points, axis=0) for sample in (reference, sizes)]
    assert found.statistic == pytest.approx(np.abs(below[0] - below[1]).max())


def test_sizes_that_no_model_has_are_rejected() -> None:
    found = validate_trace(Trace.from_arrays(np.arange(300), 1))
    assert found.sizes is not None
    assert found.sizes.p_value < 1e-6
    assert "unlike any captured model" in found.interpretations()["sizes"]


@pytest.mark.parametrize("model", WORKLOADS)
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_our_own_traces_are_sound_and_of_real_sizes(model: str, mode: str) -> None:
    found = validate_trace(generate_synthetic_trace(model, 4, mode=mode))
    assert found.sound
    assert found.sizes is not None
    assert found.sizes.statistic < (0.75 if model == "MLP" else 0.45)


def test_impossible_events_are_found_and_named() -> None:
    trace = Trace.from_arrays(
        [0, 0, 0, 1, 2, 2, 2, 0],
        8,
        kinds=[WRITE, FREE, READ, READ, READ, FREE, FREE, WRITE],
        names=["Q", "dW", "W"],
        roles=["activation", "gradient", "weight"],
    )
    found = validate_trace(trace)
    assert not found.sound
    assert (found.used_after_free, found.freed_twice, found.read_before_written) == (1, 1, 1)
    assert found.problems == (
        "used after it was freed: Q (event 2)",
        "freed twice: W (event 6)",
        "read before any step wrote it: dW (event 3)",
    )
    assert found.interpretations()["lives"] == "; ".join(found.problems)


def test_a_buffer_may_be_written_anew_after_a_free() -> None:
    kinds = [WRITE, READ, FREE, WRITE, READ]
    assert validate_trace(Trace.from_arrays([0] * 5, 8, kinds=kinds, roles=["activation"])).sound


def test_many_problems_are_cut_short() -> None:
    trace = Trace.from_arrays(np.arange(9), 8, roles=["gradient"] * 9)
    assert "and 4 more" in validate_trace(trace).problems[0]


def test_everything_is_told_as_text_and_json() -> None:
    found = validate_trace(generate_synthetic_trace(num_layers=1))
    told = json.loads(json.dumps(found.to_dict()))
    assert set(told["interpretations"]) == {"reuse entropy", "temporal locality", "sizes", "lives"}
    assert told["sound"] is True
    assert len(found.table().splitlines()) == 4


def test_a_trace_of_nothing() -> None:
    found = validate_trace(Trace.from_arrays([], []))
    assert (found.reuses, found.sizes, found.sound) == (0, None, True)
    assert "no buffers" in found.interpretations()["sizes"]
    assert "sizes" in found.table()
    with pytest.raises(ValueError, match="no buffers"):
        validate_tensor_size_distribution(Trace.from_arrays([], []))
    with pytest.raises(ValueError, match="near=0"):
        validate_trace(Trace.from_arrays([0], 8), near=0)
