"""Synthetic traces: the seed's example, dataflow that holds together, and policies that are told apart."""

from __future__ import annotations

import contextlib
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelera.errors import DTypeError, UnknownNameError
from accelera.simulator import generate_synthetic_trace, simulate
from accelera.simulator._internal import WORKLOADS, expected_accesses
from accelera.trace import Kind, Trace
from accelera.trace._internal import content_hash

EVERYTHING = 1 << 60
CASES = [
    (model, mode)
    for model in WORKLOADS
    for mode in ("inference", "training", "decode")
    if mode != "decode" or model in ("Transformer", "MoE")
]


def small(model: str = "Transformer", mode: str = "inference", **more: Any) -> Trace:
    return generate_synthetic_trace(model, 3, 2, 20, **{"mode": mode, "steps": 3, **more})


def test_the_seeds_example_has_about_576_accesses() -> None:
    counts = [
        generate_synthetic_trace(
            model_type="Transformer",
            num_layers=12,
            batch_size=32,
            seq_length=128,
            reuse_probability=0.3,
            seed=s,
        ).access_count
        for s in range(10)
    ]
    assert all(abs(count - 576) <= 0.05 * 576 for count in counts)


def test_the_seeds_names_and_sizes() -> None:
    trace = generate_synthetic_trace()
    sizes = dict(zip(trace.names, trace.size_bytes.tolist(), strict=True))
    activation = 32 * 128 * 768 * 4
    assert all(
        sizes[f"{name}_{layer}"] == activation for name in ("Q", "K", "V", "output") for layer in range(12)
    )
    assert sizes["scores_0"] == 32 * 12 * 128 * 128 * 4
    assert sizes["W_up_0"] == 768 * 4 * 768 * 4
    assert len(set(trace.names)) == trace.buffer_count


@pytest.mark.parametrize(("model", "mode"), CASES)
def test_nothing_is_read_before_it_is_made_or_used_after_it_was_freed(model: str, mode: str) -> None:
    trace = small(model, mode, reuse_probability=0.6)
    lasting = {"weight", "optimizer_state", "input"}
    alive = {index for index, role in enumerate(trace.roles) if role in lasting}
    for buffer, kind in zip(trace.buffer.tolist(), trace.kind.tolist(), strict=True):
        if kind == Kind.READ:
            assert buffer in alive, trace.names[buffer]
        elif kind == Kind.WRITE:
            alive.add(buffer)
        else:
            assert kind == Kind.FREE
            alive.remove(buffer)
    left = {trace.roles[each] for each in alive}
    assert left <= {"weight", "optimizer_state", "activation"}
    results = [trace.names[each] for each in alive if trace.roles[each] == "activation"]
    assert all(name.startswith("logits") for name in results)


@pytest.mark.parametrize(("model", "mode"), CASES)
def test_seeded_and_different_by_seed(model: str, mode: str) -> None:
    assert content_hash(small(model, mode)) == content_hash(small(model.upper(), mode.upper()))
    assert content_hash(small(model, mode)) != content_hash(small(model, mode, seed=1))


def test_frozen_numbers_are_the_same_on_every_machine() -> None:
    found = {case: (len(small(*case)), int(small(*case).footprint_bytes)) for case in CASES}
    assert found == FROZEN


def test_reuse_adds_reads_and_nothing_else() -> None:
    counts = [small(reuse_probability=p).access_count for p in (0.0, 0.3, 0.6, 1.0)]
    assert counts == sorted(counts)
    assert counts[0] < counts[1]
    assert small(reuse_probability=0.0).step_count == small(reuse_probability=1.0).step_count


@pytest.mark.parametrize("model", WORKLOADS)
def test_training_has_three_phases(model: str) -> None:
    trace = small(model, "training")
    weights = {index for index, role in enumerate(trace.roles) if role == "weight"}
    updates = [index for index, op in enumerate(trace.ops) if op == "adamw"]
    written = set(trace.buffer[np.isin(trace.step, updates) & (trace.kind == Kind.WRITE)].tolist())
    assert weights <= written
    assert [trace.ops[start] for start in trace.meta["iterations"]] == [trace.ops[0]] * 3
    assert sum(op.endswith("_backward") for op in trace.ops) > trace.step_count / 5
    assert {"gradient", "optimizer_state"} <= set(trace.roles)


def test_training_multiplies_twice_as_much_backward_as_forward() -> None:
    trace = small("MLP", "training")
    by_op = {op: trace.flops[np.array(trace.ops) == op].sum() for op in ("up", "up_backward")}
    assert by_op["up_backward"] == 2 * by_op["up"]


@pytest.mark.parametrize("model", ["Transformer", "MoE"])
def test_the_cache_grows_block_by_block(model: str) -> None:
    trace = small(model, "decode", steps=30, block_tokens=8, reuse_probability=0)
    scores = [index for index, op in enumerate(trace.ops) if op == "scores"]
    cached = np.array([role == "kv_cache" for role in trace.roles])
    reads = (trace.kind == Kind.READ) & cached[trace.buffer]
    blocks = [int(reads[trace.step == step].sum()) for step in scores]
    assert blocks[::3] == [-(-(20 + tokens) // 8) for tokens in range(31)]
    sizes = set(trace.size_bytes[cached].tolist())
    assert sizes == {2 * 8 * 768 * 4}


def test_some_experts_are_far_more_popular() -> None:
    trace = generate_synthetic_trace("MoE", 1, 64, 64, 0.0, experts=16, top_k=1)
    loads = sorted(
        size
        for size, name in zip(trace.size_bytes.tolist(), trace.names, strict=True)
        if name.startswith("expert_0")
    )
    assert loads[-1] > 5 * loads[0]
    decoding = generate_synthetic_trace("MoE", 1, 1, 4, 0.0, experts=16, top_k=1, mode="decode", steps=20)
    names = np.array([name.startswith("W_up") for name in decoding.names])
    uses = np.bincount(decoding.accessed, minlength=decoding.buffer_count)[names]
    assert 1 < np.count_nonzero(uses) < 16


def test_half_types_take_half_but_for_the_optimizer() -> None:
    whole, half = small(mode="training"), small(mode="training", dtype="bfloat16")
    assert small(dtype="bfloat16").footprint_bytes * 2 - small().footprint_bytes < 1000
    state = [np.array([role == "optimizer_state" for role in trace.roles]) for trace in (whole, half)]
    assert whole.size_bytes[state[0]].sum() == half.size_bytes[state[1]].sum()


@pytest.mark.parametrize("mode", ["inference", "training", "decode"])
def test_policies_are_told_apart(mode: str) -> None:
    """The original's grid, a sample: LRU, FIFO and Belady move different amounts in most configurations."""
    models = WORKLOADS if mode != "decode" else ("Transformer", "MoE")
    told = [
        _moved_by_three(small_grid, mode)
        for small_grid in product(models, (8, 64), (32, 512), (4,), (0.3, 0.6))
    ]
    share = sum(len(set(moved)) == 3 for moved in told) / len(told)
    assert share >= (0.6 if mode == "inference" else 0.9)


def _moved_by_three(shape: tuple[Any, ...], mode: str) -> list[int]:
    trace = generate_synthetic_trace(*shape, mode=mode, steps=4 if mode == "decode" else None)
    capacity = simulate(trace, EVERYTHING).peak_bytes // 2
    return [simulate(trace, capacity, policy).moved_bytes for policy in ("lru", "fifo", "belady")]


@settings(max_examples=25, deadline=None)
@given(
    case=st.sampled_from(CASES),
    layers=st.integers(1, 6),
    batch=st.integers(1, 40),
    length=st.integers(1, 200),
    reuse=st.floats(0, 1),
    seed=st.integers(0, 2**40),
)
def test_any_shape_gives_a_trace(
    case: tuple[str, str], layers: int, batch: int, length: int, reuse: float, seed: int
) -> None:
    model, mode = case
    trace = generate_synthetic_trace(model, layers, batch, length, reuse, mode=mode, seed=seed, steps=2)
    assert trace.size_bytes.min() > 0
    assert trace.flops.min() > 0
    assert trace.model_type == model


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"model_type": "Transfomer"}, UnknownNameError, "Transformer"),
    ({"mode": "trainning"}, UnknownNameError, "training"),
    ({"num_layers": 0}, ValueError, "num_layers=0"),
    ({"batch_size": 2.5}, TypeError, "batch_size=2.5"),
    ({"seq_length": -1}, ValueError, "seq_length=-1"),
    ({"seed": -1}, ValueError, "seed=-1"),
    ({"reuse_probability": 1.5}, ValueError, "reuse_probability=1.5"),
    ({"reuse_probability": float("nan")}, ValueError, "reuse_probability=nan"),
    ({"dtype": "int8"}, DTypeError, "int8"),
    ({"model_type": "MoE", "experts": 2, "top_k": 3}, ValueError, "top_k=3"),
    ({"model_type": "CNN", "mode": "decode"}, ValueError, "CNN"),
    ({"batch_size": 1 << 40, "seq_length": 1 << 40}, ValueError, "2\\*\\*62"),
    (
        {"num_layers": 10**9},
        ValueError,
        r"num_layers=1000000000, .* at most 10,000,000 are made. Take",
    ),
    ({"steps": 10**9, "model_type": "MLP"}, ValueError, "steps=1000000000"),
    ({"seq_length": 10**12}, ValueError, "scores_0 would have .* smaller batch_size, seq_length"),
    ({"seq_length": 10**12, "mode": "decode"}, ValueError, "seq_length=1000000000000 .* larger block_tokens"),
    ({"seq_length": 10**6, "mode": "decode", "block_tokens": 1}, ValueError, "larger block_tokens"),
    ({"hidden_size": 10**15}, ValueError, "W_embedding would have .* hidden_size"),
    ({"model_type": "CNN", "seq_length": 10**10}, ValueError, "images would have"),
    ({"model_type": "MoE", "experts": 10**12}, ValueError, "experts=1000000000000 .* weights"),
    ({"batch_size": 10**400}, ValueError, "batch_size has 1329 bits"),
]


@pytest.mark.parametrize(("wrong", "error", "said"), BAD)
def test_what_cannot_be_meant_is_refused(wrong: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        generate_synthetic_trace(**wrong)


ANY_SHAPE: dict[str, st.SearchStrategy[Any]] = {
    "batch_size": st.integers(1, 40),
    "seq_length": st.integers(1, 200),
    "reuse_probability": st.sampled_from([0.0, 0.01]) | st.floats(0, 1),
    "seed": st.integers(0, 2**40),
    "experts": st.sampled_from([2, 8, 64]),
    "block_tokens": st.integers(1, 64),
}


@settings(max_examples=60, deadline=None)
@given(
    case=st.sampled_from(CASES),
    layers=st.integers(1, 8),
    steps=st.integers(1, 6),
    shape=st.fixed_dictionaries(ANY_SHAPE),
)
def test_the_expected_accesses_are_at_least_those_made_and_less_than_twice_as_many(
    case: tuple[str, str], layers: int, steps: int, shape: dict[str, Any]
) -> None:
    model, mode = case
    asked = {"model_type": model, "mode": mode, "num_layers": layers, "steps": steps, **shape}
    made = generate_synthetic_trace(**asked).access_count
    expected = expected_accesses(**asked)
    assert made <= expected < 2 * made + 60
    if not shape["reuse_probability"] and model != "MoE":
        assert made == expected


COUNTS = ("num_layers", "steps", "batch_size", "seq_length")
huge = st.integers(1, 100) | st.integers(1, 10**30)


@settings(max_examples=150, deadline=None)
@given(
    case=st.sampled_from(CASES),
    shape=st.fixed_dictionaries(
        dict.fromkeys(
            (*COUNTS, "hidden_size", "experts", "block_tokens"),
            huge,
        )
    ),
)
def test_whatever_is_asked_is_made_or_refused_at_once(case: tuple[str, str], shape: dict[str, Any]) -> None:
    asked = {"model_type": case[0], "mode": case[1], "top_k": 1, **shape}
    try:
        expected = expected_accesses(**asked)
    except ValueError:
        expected = 10**9
    if expected < 20_000:
        with contextlib.suppress(ValueError):
            assert generate_synthetic_trace(**asked).access_count <= expected
    elif expected > 10**7:
        with pytest.raises(ValueError, match=r"\[workload\]"):
            generate_synthetic_trace(**asked)


FROZEN: dict[tuple[str, str], tuple[int, int]] = {
    ("Transformer", "inference"): (585, 205364160),
    ("Transformer", "training"): (2079, 1767230412),
    ("Transformer", "decode"): (910, 193646064),
    ("CNN", "inference"): (366, 6525248),
    ("CNN", "training"): (1311, 36905532),
    ("MLP", "inference"): (197, 121963264),
    ("MLP", "training"): (704, 662030796),
    ("MoE", "inference"): (1840, 615082176),
    ("MoE", "training"): (6758, 4171164620),
    ("MoE", "decode"): (1691, 576298800),
}
"""Events and footprint."""
