"""Reparametrized models: pruned, weight-normalized, spectrally normalized, parametrized; and lazy layers."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import accelera
from accelera.errors import DeviceError

WIDTH = 500
X = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(1))


def _weight_norm(layer: nn.Linear, dim: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.utils.weight_norm(layer, dim=dim)


def _twice(layer: nn.Linear) -> None:
    prune.random_unstructured(layer, "weight", 0.3)
    prune.l1_unstructured(layer, "weight", 0.2)


CHANGES: dict[str, Callable[[nn.Linear], Any]] = {
    "random_pruning": lambda layer: prune.random_unstructured(layer, "weight", 0.4),
    "structured_pruning": lambda layer: prune.ln_structured(layer, "weight", 0.25, n=1, dim=0),
    "pruned_twice": _twice,
    "pruned_bias": lambda layer: prune.l1_unstructured(layer, "bias", 0.5),
    "pruning_removed": lambda layer: prune.remove(prune.l1_unstructured(layer, "weight", 0.5), "weight"),
    "weight_norm_rows": lambda layer: _weight_norm(layer, 0),
    "weight_norm_columns": lambda layer: _weight_norm(layer, 1),
    "spectral_norm": nn.utils.spectral_norm,
    "parametrized_weight_norm": parametrizations.weight_norm,
    "parametrized_spectral_norm": parametrizations.spectral_norm,
}


def net(change: str) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(8)]
    for layer in layers:
        CHANGES[change](layer)
    return nn.Sequential(*layers)


@pytest.mark.parametrize("change", CHANGES)
def test_inference_before_any_forward_pass(change: str) -> None:
    expected = net(change).eval()(X).detach()
    model = accelera.offload(net(change).eval(), "32MiB")
    for _ in range(2):
        with torch.no_grad():
            assert torch.allclose(model(X), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("change", CHANGES)
def test_training_and_restoring(change: str) -> None:
    plain, model = net(change), net(change)
    accelera.offload(model, "48MiB")
    for each in (plain, model):
        optimizer = torch.optim.SGD(each.parameters(), 0.1)
        for _ in range(2):
            optimizer.zero_grad()
            each(X).square().mean().backward()
            optimizer.step()
    accelera.offloaded(model).restore()
    for (name, one), other in zip(plain.state_dict().items(), model.state_dict().values(), strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6), name
    plain.eval(), model.eval()  # a spectral norm changes its buffers at each access in training
    assert type(model[0].weight) in (torch.Tensor, nn.Parameter)
    assert torch.allclose(plain(X), model(X), rtol=1e-4, atol=1e-6)


def test_copies_of_a_normalized_model() -> None:
    model = net("weight_norm_rows").eval()
    accelera.offload(model, "48MiB")
    with torch.no_grad():
        expected = model(X)
        assert torch.equal(copy.deepcopy(model)(X), expected)


LAZY: dict[str, Callable[[], nn.Module]] = {
    "LazyLinear": lambda: nn.LazyLinear(900),
    "LazyConv2d": lambda: nn.Sequential(nn.Unflatten(1, (1, 25, 20)), nn.LazyConv2d(8, 3)),
    "LazyBatchNorm1d": nn.LazyBatchNorm1d,
    "LazyConvTranspose1d": lambda: nn.Sequential(nn.Unflatten(1, (5, 100)), nn.LazyConvTranspose1d(4, 3)),
}


@pytest.mark.parametrize("name", LAZY)
def test_lazy_layers_are_named(name: str) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), LAZY[name]())
    for request in (
        lambda: accelera.offload(model, "48MiB"),
        lambda: accelera.offload(model, "48MiB", inputs=X),
        lambda: accelera.plan_offload(model, X, "48MiB"),
        lambda: accelera.estimate(model, X, dtypes=["float32"]),
    ):
        with pytest.raises(DeviceError, match=rf"1.*{name}.*run the model once"):
            request()
    expected = model(X).detach()
    accelera.offload(model, "64MiB")
    assert torch.allclose(model(X), expected, rtol=1e-4, atol=1e-5)
