"""Transforms of ``torch.func`` over offloaded weights, and weights that change their shape in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, vmap
from torch.nn.functional import linear
from torch.utils._pytree import tree_leaves

from accelera.errors import BudgetExceededError
from accelera.offload.block_cache import BlockCache
from accelera.offload.config import OffloadConfig
from accelera.offload.module import swap_in
from tests.offload.pools import values

BLOCKS = pytest.mark.parametrize("block_bytes", [64 << 10, 256], ids=["one block", "several blocks"])
X = torch.randn(3, 8, generator=torch.Generator().manual_seed(3))


def _pair(block_bytes: int, capacity_bytes: int = 96 << 10) -> tuple[Any, Any]:
    torch.manual_seed(1)
    plain, other = nn.Linear(8, 12), nn.Linear(8, 12)
    other.load_state_dict(plain.state_dict())
    swap_in(other, BlockCache(capacity_bytes, OffloadConfig(least_bytes=64, block_bytes=block_bytes)))
    return plain, other


def _loss(weight: Any) -> Any:
    return torch.tanh(linear(X, weight)).sum()


@BLOCKS
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize(
    "transform",
    [
        lambda model: jacrev(lambda weight: torch.tanh(linear(X, weight)).sum(0))(model.weight),
        lambda model: jacfwd(lambda weight: torch.tanh(linear(X, weight)).sum(0))(model.weight),
        lambda model: hessian(_loss)(model.weight),
        lambda model: torch.autograd.functional.hessian(lambda x: linear(x, model.weight).sin().sum(), X),
        lambda model: vmap(lambda row: torch.tanh(row).sum())(model.weight),
        lambda model: vmap(lambda x: linear(x, model.weight, model.bias))(X),
        lambda model: vmap(grad(lambda weight, x: linear(x, weight).sin().sum()), (None, 0))(model.weight, X),
        lambda model: grad(lambda given: functional_call(model, given, X).sin().sum())(
            dict(model.named_parameters())
        ),
    ],
)
def test_transforms(block_bytes: int, transform: Callable[[Any], Any]) -> None:
    plain, other = (tree_leaves(transform(model)) for model in _pair(block_bytes))
    for one, another in zip(plain, other, strict=True):
        torch.testing.assert_close(values(another), values(one))


def test_a_hessian_that_does_not_fit_names_the_remedy() -> None:
    _, other = _pair(64 << 10, 16 << 10)
    with pytest.raises(BudgetExceededError, match="inputs=EXAMPLE"):
        hessian(_loss)(other.weight)


@BLOCKS
@pytest.mark.parametrize(
    "change",
    [
        lambda tensor: tensor.t_(),
        lambda tensor: tensor.transpose_(0, 1),
        lambda tensor: tensor.swapaxes_(0, 1),
        lambda tensor: tensor.swapdims_(0, 1),
        lambda tensor: tensor.unsqueeze_(1),
        lambda tensor: tensor.unsqueeze(0).squeeze_(0),
    ],
)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_shapes_change_in_place(block_bytes: int, change: Callable[[Any], Any], mode: Any) -> None:
    plain, other = _pair(block_bytes)
    with mode():
        weights = plain.weight.detach(), other.weight.detach()
        for weight in weights:
            changed = change(weight)
            changed.add_(torch.arange(changed.shape[-1]))
        one, another = (change(weight) for weight in weights)
        assert one.shape == another.shape
        assert one.stride() == another.stride()
        torch.testing.assert_close(values(another), one)
    assert torch.equal(values(other.weight), plain.weight)


@BLOCKS
def test_shapes_change_in_place_within_a_graph(block_bytes: int) -> None:
    plain, other = _pair(block_bytes)
    for model in (plain, other):
        (model.weight * 2).t_().mul(torch.arange(12)).sum().backward()
        with pytest.raises(RuntimeError, match="leaf Variable"):
            model.weight.t_()
    torch.testing.assert_close(values(other.weight.grad), plain.weight.grad)
