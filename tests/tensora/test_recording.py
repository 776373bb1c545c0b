"""The trace of a program on tensors: its bytes are those of the allocator, and the simulator takes it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import accelera.tensora as ts
from accelera.policy import POLICIES
from accelera.simulator import advise, simulate
from accelera.trace import Occupancy, Trace, read_trace, write_trace

SIZES = (64, 256, 256, 10)


def network() -> tuple[list[Any], Any, Any]:
    """Weights of three layers, inputs and wanted outputs."""
    random = np.random.default_rng(0)
    weights = [
        ts.asarray(random.normal(size=shape) * 0.1, dtype=ts.float32, copy=True)
        for shape in itertools.pairwise(SIZES)
    ]
    for weight in weights:
        weight.requires_grad = True
    x = ts.asarray(random.normal(size=(128, 64)), dtype=ts.float32, copy=True)
    return weights, x, ts.asarray(random.normal(size=(128, 10)), dtype=ts.float32, copy=True)


def train(weights: list[Any], x: Any, wanted: Any) -> float:
    """One step of gradient descent; the loss."""
    y = x
    for weight in weights:
        y = ts.tanh(y @ weight) * 1.5 + 0.1 * (y @ weight)
    loss = ts.mean(ts.square(y - wanted))
    loss.backward()
    with ts.no_grad():
        for weight in weights:
            weight -= 0.1 * weight.grad
            weight.grad = None
    return float(loss)


def recorded(work: Callable[[], object]) -> tuple[Trace, int]:
    """The trace of the work, and the bytes that tensors held at most during it."""
    ts.reset_peak()
    with ts.Recording() as recording:
        kept = work()
    peak = ts.memory_stats().peak_bytes
    del kept
    return recording.trace(model_type="MLP"), peak


def test_the_bytes_of_the_trace_are_those_of_the_allocator() -> None:
    weights, x, wanted = network()
    train(weights, x, wanted)
    held = ts.memory_stats().live_bytes
    trace, peak = recorded(lambda: train(weights, x, wanted))
    touched = sum(trace.size_bytes[Occupancy(trace).at_start])
    assert Occupancy(trace).peak_bytes == peak - (held - touched)


def test_the_roles_of_a_training_step() -> None:
    weights, x, wanted = network()
    trace, _ = recorded(lambda: train(weights, x, wanted))
    assert {"weight", "activation", "gradient"} <= set(trace.roles)
    assert sum(trace.size_bytes[np.array(trace.roles) == "weight"]) >= sum(each.nbytes for each in weights)


def test_what_a_graph_saves_is_an_activation_also_when_it_waited() -> None:
    x = ts.ones(1 << 16)
    x.requires_grad = True
    y = ts.exp(x * 2)
    loss = ts.sum(y)
    roles = ts.memory_stats().live_by_role
    assert roles["activation"] >= y.nbytes
    loss.backward()


def test_steps_have_their_operation_and_its_cost() -> None:
    a, b = ts.ones((50, 60)), ts.ones((60, 70))
    trace, _ = recorded(lambda: a @ b)
    assert list(trace.ops) == ["matmul"]
    assert trace.flops[0] == 2 * 50 * 60 * 70
    assert trace.seconds[0] > 0
    assert trace.access_count == 3


def test_operations_that_run_together_are_one_step() -> None:
    x = ts.ones(1 << 17)
    with ts.fusion(True):
        trace, _ = recorded(lambda: ts.sum(ts.exp(x * 2 + x)))
    assert [op for op in trace.ops if op != "create"] == ["elementwise", "sum"]


def test_writing_in_place_reads_and_writes() -> None:
    x, y = ts.ones(1000), ts.ones(1000)
    with ts.Recording() as recording:
        recording.name(x, "x")
        x += y
        x[:10] = y[:10]
    trace = recording.trace()
    assert list(trace.ops) == ["add", "assignment"]
    place = trace.names.index("x")
    assert trace.kind[trace.buffer == place].tolist() == [0, 1, 1]


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"scored", "learned"}))
def test_the_simulator_replays_a_training_step(policy: str) -> None:
    weights, x, wanted = network()
    trace, _ = recorded(lambda: [train(weights, x, wanted) for _ in range(3)])
    peak = Occupancy(trace).peak_bytes
    whole = simulate(trace, peak, policy)
    half = simulate(trace, "60%", policy)
    assert whole.peak_bytes <= peak
    assert half.moved_bytes >= whole.moved_bytes


def test_advice_for_a_training_step() -> None:
    weights, x, wanted = network()
    trace, _ = recorded(lambda: [train(weights, x, wanted) for _ in range(2)])
    advice = advise(trace, "60%", bound=False)
    assert advice.policy in POLICIES


def test_a_trace_is_written_and_read(tmp_path: Any) -> None:
    weights, x, wanted = network()
    trace, _ = recorded(lambda: train(weights, x, wanted))
    write_trace(trace, tmp_path / "step.parquet")
    again = read_trace(tmp_path / "step.parquet")
    np.testing.assert_array_equal(again.buffer, trace.buffer)
    assert again.ops == trace.ops


def test_misuse() -> None:
    recording = ts.Recording()
    with pytest.raises(RuntimeError, match="has not ended"):
        recording.trace()
    with recording, pytest.raises(RuntimeError, match="recorded already"), ts.Recording():
        pass
    assert recording.trace().step_count == 0
