"""Recording leaves the model, its gradients, the optimizer and torch's random state as they were."""

from __future__ import annotations

import gc
from collections import UserDict
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from accelera import capture
from accelera.capture._internal import Listener, OperatorRecording


class Model(nn.Module):
    """Weights, running figures, dropout, and one part in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 2))
        self.register_buffer("calls", torch.zeros(()))
        self.frozen = nn.BatchNorm1d(2).eval()
        self.error: Exception | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        if self.error is not None:
            raise self.error
        return self.frozen(self.layers(x))  # type: ignore[no-any-return]


def state(model: nn.Module) -> dict[str, Any]:
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {
        **{name: (id(each), each.detach().clone()) for name, each in tensors.items()},
        **{
            f"{n}.grad": (id(p.grad), None if p.grad is None else p.grad.clone())
            for n, p in model.named_parameters()
        },
        **{f"{n}.training": each.training for n, each in model.named_modules()},
        "random": torch.get_rng_state(),
        "hooks": [len(h) for h in _hooks()],
        "modes": _get_current_dispatch_mode_stack(),
        "collects": (gc.isenabled(), gc.get_freeze_count()),
        "dtype": torch.get_default_dtype(),
    }


def _hooks() -> list[Any]:
    return [
        modules._global_forward_hooks,
        modules._global_forward_pre_hooks,
        optimizers._global_optimizer_pre_hooks,
        optimizers._global_optimizer_post_hooks,
    ]


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


@pytest.fixture(autouse=True)
def nothing_set_aside() -> None:
    """Leave what exists to the collector, as in a user's program: recording sets it aside itself."""
    gc.unfreeze()


@pytest.fixture
def model() -> Model:
    model = Model()
    model(torch.randn(3, 4)).sum().backward()
    model.layers[3].weight.grad = None
    return model


@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("train", [False, True])
def test_everything_is_as_before(model: Model, train: bool, fake: bool) -> None:
    x, before = torch.ones(3, 4), state(model)
    capture(model, x, train, steps=2, fake=fake)
    assert same(state(model), before)


@pytest.mark.parametrize("fake", [False, True])
def test_building_draws_no_random_numbers_of_the_caller(fake: bool) -> None:
    before = torch.get_rng_state()
    capture(Model, lambda: torch.randn(3, 4), fake=fake)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("fake", [False, True])
def test_an_error_in_the_model_passes_through_untouched(model: Model, fake: bool) -> None:
    x = torch.ones(3, 4)
    before = state(model)
    model.error = KeyError("mine")
    with pytest.raises(KeyError) as caught:
        capture(model, x, fake=fake)
    assert caught.value is model.error
    assert same(state(model), before)


def test_an_optimizer_that_is_given_is_as_before(model: Model) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    x = torch.ones(3, 4)
    model(x).sum().backward()
    optimizer.step()
    before = (state(model), contents(optimizer))
    trace = capture(model, x, optimizer=optimizer, steps=2)
    assert same((state(model), contents(optimizer)), before)
    existing = [n for n, role in zip(trace.names, trace.roles, strict=True) if role == "optimizer_state"]
    assert "layers.0.weight.exp_avg" in existing


def test_an_optimizer_that_never_stepped_has_no_state_afterwards(model: Model) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    capture(model, torch.ones(3, 4), optimizer=optimizer)
    assert not optimizer.state


def contents(optimizer: torch.optim.Optimizer) -> Any:
    return [
        [{k: (id(v), v.clone()) for k, v in state.items()} for state in optimizer.state.values()],
        [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups],
    ]


def test_gradients_of_inputs_are_as_before() -> None:
    x = torch.ones(2, 4, requires_grad=True)
    capture(nn.Linear(4, 4), x)
    assert x.grad is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 0}, "at least 1"),
        ({"generate_tokens": 2}, "train=False"),
        ({"dtype": "float64"}, "model.to"),
        ({"optimizer": "adamm"}, "'adam'"),
        ({"optimizer": torch.optim.SGD([torch.ones(1)], lr=1), "fake": True}, "fake ones"),
    ],
)
def test_what_cannot_be_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, LookupError), match=message):
        capture(nn.Linear(2, 2), torch.ones(1, 2), **arguments)


def test_inputs_may_be_any_mapping_as_tokenizers_give() -> None:
    inputs = UserDict(x=torch.ones(3, 4))
    names = capture(Model(), inputs, steps=1).names
    assert names == capture(Model(), {"x": torch.ones(3, 4)}, steps=1).names
    assert "input.0" in names


@pytest.mark.parametrize("build", [lambda: 3, lambda: torch.ones(2), "train.py"])
def test_a_builder_that_builds_no_module_is_refused(build: Any) -> None:
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        capture(build, torch.ones(1))


def test_a_recording_that_cannot_begin_leaves_no_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(_: Listener) -> None:
        raise RuntimeError("no")

    before = [list(each) for each in _hooks()]
    monkeypatch.setattr(Listener, "__enter__", refuses)
    with pytest.raises(RuntimeError, match="no"), OperatorRecording(follow_optimizer=True):
        pass
    assert [list(each) for each in _hooks()] == before
