"""Optimizers: the same numbers as PyTorch's, groups, states that are saved and loaded."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch

import accelera.tensora as ts
from accelera.errors import AcceleraError
from accelera.tensora import optim

RANDOM = np.random.default_rng(0)
SHAPES = [(3, 4), (5,), (), (40, 1000)]
ARRAYS = [RANDOM.normal(size=shape) for shape in SHAPES]
OPTIONS = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True, "weight_decay": 0.01}),
    ("Adam", {"lr": 0.01}),
    ("Adam", {"lr": 0.01, "betas": (0.8, 0.95), "weight_decay": 0.1, "amsgrad": True}),
    ("Adam", {"lr": 0.01, "maximize": True, "eps": 1e-3}),
    ("AdamW", {"lr": 0.01}),
    ("AdamW", {"lr": 0.01, "weight_decay": 0.2, "amsgrad": True, "maximize": True}),
]


def loss_of(params: list[Any], step: int) -> Any:
    """Different slopes in each step; the second parameter rests in some."""
    total = params[0].sum() * 0
    for i, param in enumerate(params):
        if i != 1 or step % 3:
            total = total + ((param - 0.1 * i) ** 2).sum() * (1 + step % 2)
    return total


def leaves(dtype: Any = None) -> list[Any]:
    return [ts.tensor(each, dtype=dtype, requires_grad=True) for each in ARRAYS]


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_a_hundred_steps_are_pytorchs(name: str, options: dict[str, Any]) -> None:
    ours, theirs = leaves(), [torch.tensor(each, requires_grad=True) for each in ARRAYS]
    optimizer = getattr(optim, name)(ours, **options)
    other = getattr(torch.optim, name)(theirs, **options)
    for step in range(100):
        optimizer.zero_grad()
        other.zero_grad()
        loss_of(ours, step % 20).backward()
        loss_of(theirs, step % 20).backward()
        optimizer.step()
        other.step()
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(("name", "options"), OPTIONS[1::3])
def test_other_types(name: str, options: dict[str, Any], dtype: str) -> None:
    if name != "SGD":
        options = options | {"eps": 1e-3}  # squares of small gradients are zero in float16
    ours = leaves(getattr(ts, dtype))
    theirs = [torch.tensor(each, dtype=getattr(torch, dtype), requires_grad=True) for each in ARRAYS]
    optimizer = getattr(optim, name)(ours, **options)
    other = getattr(torch.optim, name)(theirs, **options)
    for step in range(3):
        optimizer.zero_grad()
        other.zero_grad()
        loss_of(ours, step).backward()
        loss_of(theirs, step).backward()
        optimizer.step()
        other.step()
    tolerance = 1e-5 if dtype == "float32" else 0.1
    for a, b in zip(ours, theirs, strict=True):
        found, expected = a.detach().to(ts.float32).numpy(), b.detach().float().numpy()
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_a_loaded_state_goes_on(name: str, options: dict[str, Any]) -> None:
    first, second = leaves(), leaves()
    made = getattr(optim, name)(first, **options)
    for step in range(3):
        made.zero_grad()
        loss_of(first, step).backward()
        made.step()
    again = getattr(optim, name)(second, lr=5.0)
    with ts.no_grad():
        for a, b in zip(second, first, strict=True):
            a[...] = b
    again.load_state_dict(made.state_dict())
    for optimizer, params in ((made, first), (again, second)):
        optimizer.zero_grad()
        loss_of(params, 3).backward()
        optimizer.step()
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a.detach().numpy(), b.detach().numpy())


def test_groups_have_options_of_their_own() -> None:
    a, b = ts.ones(2, dtype=ts.float64).requires_grad_(), ts.ones(2, dtype=ts.float64).requires_grad_()
    optimizer = optim.SGD([{"params": a}, {"params": [b], "lr": 0.5}], lr=0.25)
    assert optimizer.step(lambda: (a.sum() + b.sum()).backward()) is None
    assert (a.tolist(), b.tolist()) == ([0.75, 0.75], [0.5, 0.5])
    assert "lr: 0.5" in repr(optimizer)
    optimizer.zero_grad(set_to_none=False)
    assert a.grad.tolist() == [0, 0]
    optimizer.zero_grad()
    assert a.grad is None


def test_a_step_is_noticed_by_what_was_saved() -> None:
    w = ts.ones(3).requires_grad_()
    loss = (w * w).sum()
    loss.backward(retain_graph=True)
    optim.SGD([w], lr=0.1).step()
    with pytest.raises(RuntimeError, match="written in place"):
        loss.backward()


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda w: optim.SGD([]), ValueError, "no parameters"),
        (lambda w: optim.SGD(w), TypeError, "a list"),
        (lambda w: optim.SGD([w, w]), ValueError, "twice"),
        (lambda w: optim.SGD([w * 2]), ValueError, "leaves"),
        (lambda w: optim.SGD(cast(Any, [1.0])), TypeError, "float"),
        (lambda w: optim.SGD([w], lr=-1), ValueError, "lr=-1"),
        (lambda w: optim.SGD([w], nesterov=True), ValueError, "nesterov"),
        (lambda w: optim.Adam([w], betas=(0.9, 1.0)), ValueError, "betas"),
        (lambda w: optim.Adam([{"params": [w], "rate": 1}]), TypeError, "rate"),
        (lambda w: optim.Adam([w]).load_state_dict(optim.SGD([w, w + 0]).state_dict()), ValueError, "leaves"),
        (lambda w: cast(Any, optim.Optimizer)([w], {}), TypeError, "abstract"),
    ],
)
def test_what_is_refused(make: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make(ts.ones(2).requires_grad_())


def test_states_of_another_model_are_refused() -> None:
    first, second = optim.Adam(leaves()), optim.Adam([ts.ones(3).requires_grad_()])
    with pytest.raises(ValueError, match="groups of"):
        second.load_state_dict(first.state_dict())
    loss_of(first.param_groups[0]["params"], 1).backward()
    first.step()
    third = optim.Adam([ts.ones(3).requires_grad_() for _ in SHAPES])
    with pytest.raises(ValueError, match="shape"):
        third.load_state_dict(first.state_dict())


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state["state"][1].update(step=float("inf")),
        lambda state: state["state"][1].update(step=-1),
        lambda state: state["state"][1].update(exp_avg=ts.ones((9, 9))),
        lambda state: state["param_groups"][0].update(lr=-1.0),
        lambda state: state["param_groups"][0].update(betas=(0.9, 1.5)),
    ],
    ids=["infinite step", "negative step", "wrong shape", "negative lr", "beta out of range"],
)
def test_refused_state_leaves_the_optimizer_unchanged(change: Any) -> None:
    weights = [ts.ones((3,)).requires_grad_(), ts.ones((2, 2)).requires_grad_()]
    optimizer = optim.Adam(weights, lr=0.1)
    for weight in weights:
        weight.grad = ts.ones_like(weight)
    optimizer.step()
    before = optimizer.state_dict()
    state = optimizer.state_dict()
    state["param_groups"][0]["lr"] = 0.5
    change(state)
    with pytest.raises(AcceleraError):
        optimizer.load_state_dict(state)
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    for number, values in before["state"].items():
        for name, value in values.items():
            np.testing.assert_array_equal(np.asarray(after["state"][number][name]), np.asarray(value))
    optimizer.step()
