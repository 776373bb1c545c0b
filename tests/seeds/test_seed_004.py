"""Seed 004, Tensora: tensors, the recorded graph, modules, and the items of its roadmap."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import accelera.tensora as ts
from accelera.errors import AcceleraError
from accelera.tensora import functional, nn, optim
from accelera.tensora.serialization import load_file, save_file

VECTORS = arrays(np.float64, st.integers(1, 40), elements=st.floats(-10, 10))


def test_an_addition_records_its_name_and_inputs() -> None:
    a, b = ts.tensor([1.0], requires_grad=True), ts.tensor([2.0], requires_grad=True)
    name, first, second = (a + b)._grad_fn
    assert name == "add"
    assert first is a
    assert second is b
    assert a._grad_fn is None


@given(values=VECTORS)
def test_backward_equals_torch(values: np.ndarray) -> None:
    ours, theirs = ts.tensor(values, requires_grad=True), torch.tensor(values, requires_grad=True)
    (ts.tanh(ours) * ours).sum().backward()
    (torch.tanh(theirs) * theirs).sum().backward()
    np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), rtol=1e-9, atol=1e-12)


@given(values=VECTORS)
def test_second_derivatives(values: np.ndarray) -> None:
    x = ts.tensor(values, requires_grad=True)
    (slope,) = ts.grad((x * x * x).sum(), x, create_graph=True)
    (curve,) = ts.grad(slope.sum(), x)
    np.testing.assert_allclose(curve.numpy(), 6 * values, atol=1e-9)


def test_the_graph_is_recorded_anew_in_each_step() -> None:
    x = ts.tensor(3.0, requires_grad=True)
    for power in (1, 2, 3):  # a different graph each time
        x.grad = None
        y = x
        for _ in range(power - 1):
            y = y * x
        y.backward()
        assert x.grad is not None
        assert x.grad.item() == power * 3.0 ** (power - 1)


def test_memory_is_shared_or_copied_as_asked() -> None:
    values = np.zeros(3)
    shared, copied = ts.asarray(values), ts.asarray(values, copy=True)
    values[0] = 1
    assert (shared[0].item(), copied[0].item()) == (1, 0)


def test_devices() -> None:
    x = ts.tensor([1.0])
    assert x.to("cpu").device == x.cpu().device == "cpu"
    if not ts.cuda.is_available():
        with pytest.raises(AcceleraError, match="CUDA"):
            x.to("cuda")


class Scaled(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(ts.full((size,), 2.0))

    def forward(self, x: ts.Tensor) -> ts.Tensor:
        return functional.relu(x) * self.scale


def test_a_new_layer() -> None:
    layer = nn.Sequential(Scaled(2), nn.Linear(2, 1))
    assert [name for name, _ in layer.named_parameters()] == ["0.scale", "1.weight", "1.bias"]
    layer(ts.tensor([[1.0, -1.0]])).sum().backward()
    assert all(each.grad is not None for each in layer.parameters())
    assert layer.to("cpu") is layer


def test_a_new_operation() -> None:
    @ts.kernel
    def cube_plus(x: ts.Tensor, y: ts.Tensor) -> ts.Tensor:
        return x * x * x + y

    x = ts.tensor([2.0], requires_grad=True)
    found = cube_plus(x, ts.tensor([1.0]))
    found.sum().backward()
    assert (found.item(), x.grad.item()) == (9, 12)
    assert "cube_plus" in {entry["name"] for entry in ts.ops()}


def test_convolution_pooling_and_activations() -> None:
    values = np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype(np.float32)
    ours = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.GELU())
    theirs = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.GELU()
    )
    ours.load_state_dict({name: ts.tensor(each.numpy()) for name, each in theirs.state_dict().items()})
    expected = theirs(torch.tensor(values)).detach().numpy()
    np.testing.assert_allclose(ours(ts.tensor(values)).detach().numpy(), expected, atol=1e-5)


def test_schedules_mixed_precision_and_jit() -> None:
    model = nn.Linear(4, 1)
    optimizer = optim.SGD(model.parameters(), lr=1.0)
    schedule = optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    step = ts.jit(lambda x: (model(x) ** 2).mean())
    x = ts.ones((8, 4))
    assert step(x).item() == pytest.approx((model(x) ** 2).mean().item(), rel=1e-6)
    with ts.autocast(dtype=ts.bfloat16):
        assert model(x).dtype == ts.bfloat16
    model(x).sum().backward()
    optimizer.step()
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_models_are_saved_and_loaded(tmp_path: Path) -> None:
    model, other = nn.Linear(4, 2), nn.Linear(4, 2)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    other.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert other.weight.tolist() == model.weight.tolist()
