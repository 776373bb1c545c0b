"""Offloaded tensors given to be written, exchanged, or taken apart: as PyTorch does it, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from accelera.errors import DeviceError
from accelera.offload.block_cache import BlockCache
from accelera.offload.config import OffloadConfig
from accelera.offload.module import swap_in
from tests.offload.pools import pair, same, values


class _Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.w = nn.Parameter(torch.randn(96, 64))
        self.v = nn.Parameter(torch.randn(64, 96))


@pytest.fixture(params=["one block", "several blocks"])
def models(request: pytest.FixtureRequest) -> tuple[nn.Module, nn.Module]:
    if request.param == "one block":
        return pair(_Two())
    plain, other = _Two(), _Two()
    swap_in(other, BlockCache(512 << 10, OffloadConfig(least_bytes=64, block_bytes=4 << 10)))
    return plain, other


def _data_is_not_seen_by_autograd(model: Any) -> Any:
    result = (model.w**2).sum()
    model.w.data.add_(1)
    result.backward()
    return model.w.grad


def _spectral_norm(model: Any) -> Any:
    linear = nn.Linear(64, 96)
    linear.weight = model.w
    torch.manual_seed(1)
    nn.utils.parametrizations.spectral_norm(linear)
    return linear(torch.ones(2, 64)) - linear.bias


def _set(model: Any) -> Any:
    with torch.no_grad():
        model.w.set_(model.v.t())
    return model.w


def _into_an_empty_one(model: Any) -> Any:
    return torch.add(model.w.detach(), 1, out=torch.empty(0))


def _transformed(model: Any) -> Any:
    return torch.func.grad(lambda scale: ((model.w * scale) ** 2).sum())(torch.tensor(2.0))


@pytest.mark.parametrize(
    "function",
    [
        _data_is_not_seen_by_autograd,
        _spectral_norm,
        _set,
        _into_an_empty_one,
        _transformed,
        lambda model: model.w.detach().softmax(0),
        lambda model: model.w.detach().cumsum(0),
        lambda model: model.w.detach().sort(0),
        lambda model: model.w.detach().topk(80, 0),
        lambda model: torch.frexp(model.w.detach()),
        lambda model: torch.eye(96).to_sparse() @ model.w.detach(),
    ],
)
def test_as_without_offload(models: Any, function: Callable[[Any], Any]) -> None:
    plain, other = (function(model) for model in models)
    pairs = [(plain, other)] if isinstance(plain, torch.Tensor) else list(zip(plain, other, strict=True))
    for one, another in pairs:
        torch.testing.assert_close(values(another), values(one))


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_a_given_result_of_another_shape_is_refused_and_not_touched(models: Any) -> None:
    plain, other = models
    with torch.no_grad():
        with pytest.raises(DeviceError, match=r"\[add\].*\(3, 3\).*out="):
            torch.add(torch.ones(3, 3), 1, out=other.w)
        with pytest.raises(DeviceError, match=r"\[nonzero\].*the values tell.*out="):
            torch.nonzero(torch.ones(3), out=other.w.long())
        torch.add(plain.w, 1, out=plain.w)
        torch.add(other.w, 1, out=other.w)
    assert same(values(plain.w), values(other.w))


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_an_ordinary_given_result_is_resized(models: Any) -> None:
    plain, other = (torch.mul(model.w.detach(), 2, out=torch.ones(5)) for model in models)
    assert torch.equal(plain, other)


def test_other_libraries_get_no_pointer(models: Any) -> None:
    weight = models[1].w.detach()
    with pytest.raises(DeviceError, match=r"\[from_dlpack\]"):
        torch.from_dlpack(weight)
    with pytest.raises(RuntimeError, match="data pointer"):
        torch.utils.dlpack.to_dlpack(weight)
    assert torch.equal(torch.from_dlpack(weight.materialized()), values(weight))
