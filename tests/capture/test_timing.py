"""``capture(timed=)`` and ``predict_compile(hierarchy="local")``: a model's own step as the yardstick."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from accelera import capture, predict_compile
from accelera.estimate import prediction
from accelera.memory import Compute


@pytest.fixture(autouse=True)
def quick_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    small = prediction.local_machine(small=True)
    monkeypatch.setattr(prediction, "local_machine", lambda: small)


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 4))


@pytest.mark.parametrize("train", [True, False])
def test_timing_changes_neither_the_trace_nor_the_model(train: bool) -> None:
    torch.manual_seed(0)
    made, inputs = model(), torch.randn(8, 16)
    before = {name: value.clone() for name, value in made.state_dict().items()}
    random = torch.get_rng_state()
    plain, timed = capture(made, inputs, train), capture(made, inputs, train, timed=3)
    assert 0 < timed.meta["measured_s"] < 60
    assert "measured_s" not in plain.meta
    assert (timed.buffer == plain.buffer).all()
    assert (timed.ops, timed.names) == (plain.ops, plain.names)
    assert all(torch.equal(value, before[name]) for name, value in made.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(each.grad is None for each in made.parameters())


@pytest.mark.parametrize(
    "options", [{"timed": -1}, {"timed": 2, "fake": True}, {"timed": 2, "generate_tokens": 2, "train": False}]
)
def test_what_cannot_be_timed_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\[capture\] timed="):
        capture(model(), torch.randn(8, 16), **options)


def test_on_this_machine_a_real_step_is_timed() -> None:
    time = predict_compile(model(), torch.randn(8, 16), hierarchy="local").time
    assert time.measured
    assert time.eager.total.value is not None
    assert time.compiled.low.value < time.eager.total.value < 10 * time.compiled.high.value


def test_on_this_machine_a_trace_or_shapes_are_not() -> None:
    trace = capture(model(), torch.randn(8, 16))
    for found in (
        predict_compile(trace, hierarchy="local"),
        predict_compile(model, torch.randn(8, 16), hierarchy="local"),
    ):
        assert not found.time.measured
        assert found.machine == "local"


def test_the_probes_give_speeds() -> None:
    speeds = prediction.local_machine().compute
    assert isinstance(speeds, Compute)
    assert 1e6 < speeds.flops_per_s < 1e15
    assert 1e6 < speeds.bandwidth_bytes_per_s < 1e15
    assert 1e-8 < speeds.launch_s < 1
