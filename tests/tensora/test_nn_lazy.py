"""Lazy modules against PyTorch's: what they become, the same weights and results, and states."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import accelera.tensora as ts
from accelera.tensora import nn, optim

CASES: list[tuple[str, tuple[Any, ...], dict[str, Any], tuple[int, ...]]] = [
    ("LazyLinear", (5,), {}, (3, 4)),
    ("LazyLinear", (5,), {"bias": False}, (2, 3, 4)),
    ("LazyConv1d", (4, 3), {"groups": 2}, (2, 6, 9)),
    ("LazyConv2d", (4, 3), {"padding": 1, "padding_mode": "reflect"}, (2, 6, 9, 8)),
    ("LazyConv2d", (4, (3, 2)), {"bias": False}, (6, 9, 8)),
    ("LazyConv3d", (4, 2), {"stride": 2}, (2, 3, 5, 6, 7)),
    ("LazyConvTranspose1d", (4, 3), {"groups": 2}, (2, 6, 9)),
    ("LazyConvTranspose2d", (4, 3), {"stride": 2, "output_padding": 1}, (2, 6, 5, 4)),
    ("LazyConvTranspose3d", (4, 2), {}, (2, 3, 4, 4, 4)),
    ("LazyBatchNorm1d", (), {}, (5, 3, 4)),
    ("LazyBatchNorm2d", (), {"affine": False}, (5, 3, 4, 4)),
    ("LazyBatchNorm3d", (), {"track_running_stats": False}, (5, 3, 4, 4, 2)),
]


def pair(name: str, args: Any, options: Any) -> tuple[Any, Any]:
    return getattr(nn, name)(*args, **options), getattr(torch.nn, name)(*args, **options)


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
@pytest.mark.parametrize(("name", "args", "options", "shape"), CASES)
def test_a_lazy_module_becomes_what_pytorchs_does(name: str, args: Any, options: Any, shape: Any) -> None:
    ours, theirs = pair(name, args, options)
    x = np.random.default_rng(0).normal(size=shape).astype("f")
    params = list(ours.parameters())
    assert ours(ts.tensor(x)).dtype == ts.float32
    theirs(torch.tensor(x))
    assert type(ours).__name__ == type(theirs).__name__ == name.removeprefix("Lazy")
    assert [id(each) for each in ours.parameters()] == [id(each) for each in params]
    state = {key: ts.tensor(value.numpy().copy()) for key, value in theirs.state_dict().items()}
    assert {key: tuple(value.shape) for key, value in ours.state_dict().items()} == {
        key: tuple(value.shape) for key, value in state.items()
    }
    fresh = getattr(nn, name)(*args, **options)
    fresh.load_state_dict(state)  # extents come from the state
    for mine in (ours, fresh):
        mine.load_state_dict(state)
        mine.eval()
        np.testing.assert_allclose(
            mine(ts.tensor(x)).detach().numpy(),
            theirs.eval()(torch.tensor(x)).detach().numpy(),
            rtol=1e-5,
            atol=1e-5,
        )


def test_first_values_are_those_of_the_module_itself() -> None:
    x = ts.ones((2, 6))
    ts.random.manual_seed(3)
    lazy = nn.LazyLinear(4)
    lazy(x)
    ts.random.manual_seed(3)
    plain = nn.Linear(6, 4)
    assert ts.array_equal(lazy.weight, plain.weight)
    assert repr(lazy) == repr(plain)


def test_an_optimizer_may_have_the_parameters_before() -> None:
    model = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(1))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    x, losses = ts.tensor(np.random.default_rng(0).normal(size=(16, 3)).astype("f")), []
    for _ in range(20):
        optimizer.zero_grad()
        loss = ((model(x) - 1.0) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < losses[0]


def test_a_lazy_module_is_copied_and_pickled_before_it_is_used() -> None:
    lazy = nn.Sequential(nn.LazyConv2d(2, 3), nn.LazyBatchNorm2d())
    for twin in (copy.deepcopy(lazy), pickle.loads(pickle.dumps(lazy))):
        twin.to(ts.float64)
        assert twin(ts.ones((2, 3, 5, 5), dtype=ts.float64)).dtype == ts.float64
    assert lazy.state_dict()["0.weight"].size == 0


def test_inputs_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="5 channels in 2 groups"):
        nn.LazyConv1d(4, 3, groups=2)(ts.ones((1, 5, 7)))
    with pytest.raises(ValueError, match="an input of 2 axes"):
        nn.LazyConv2d(4, 3)(ts.ones((5, 7)))
