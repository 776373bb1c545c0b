"""Copies of offloaded models: they train like plain copies, in the same budget, and are restored whole."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch
from torch import nn

from accelera import offloaded
from accelera.offload import OffloadedTensor
from accelera.offload.block_cache import BlockCache
from accelera.offload.config import OffloadConfig
from accelera.offload.module import swap_in
from accelera.offload.training.hooks import Recomputed, Training
from tests.offload.training_models import losses_by

X = torch.randn(64, 512, generator=torch.Generator().manual_seed(2))


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.Tanh()) for _ in range(4)))


def _offloaded(activations: str) -> nn.Module:
    """Return a model in a pool that a step of an optimizer does not fit, whatever else the process holds."""
    model, cache = _model(), BlockCache(12 << 20, OffloadConfig(block_bytes=1 << 20))
    swap_in(model, cache)
    Training(model, cache, activations)
    return model


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 2) -> list[float]:
    return losses_by(optimizer, lambda _: (model(X) - X).square().mean(), steps)


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), 1e-3)


def _three_trainings(model: nn.Module) -> list[float]:
    """Train a model, a copy that is made then, and the model again."""
    optimizer = _optimizer(model)
    losses = _train(model, optimizer)
    twin = copy.deepcopy(model)
    losses += _train(twin, _optimizer(twin))
    return losses + _train(model, optimizer)


@pytest.mark.parametrize("activations", ["offload", "recompute", "keep"])
def test_a_copy_made_in_training_trains_like_a_plain_copy(activations: str) -> None:
    expected = _three_trainings(_model())
    model = _offloaded(activations)
    losses = _three_trainings(model)
    assert losses == expected
    twin = copy.deepcopy(model)
    _train(twin, _optimizer(twin))
    weights = [each for each in twin.parameters() if each.ndim == 2]
    assert all(isinstance(each.grad, OffloadedTensor) for each in weights)
    report = offloaded(twin).report()
    assert report.peak_bytes <= report.capacity_bytes
    assert offloaded(twin).cache.peak_allocated_bytes <= report.capacity_bytes


def _hooks(model: nn.Module) -> list[Any]:
    return [
        each
        for module in model.modules()
        for each in (
            *module._forward_pre_hooks.values(),
            *module._forward_hooks.values(),
            *module._forward_hooks_always_called,
            *(value for value in module.__dict__.values() if isinstance(value, Recomputed)),
        )
    ]


@pytest.mark.parametrize("activations", ["offload", "recompute"])
def test_a_restored_copy_has_nothing_left_and_the_model_goes_on(activations: str) -> None:
    plain, model = _model(), _offloaded(activations)
    twin = copy.deepcopy(model)
    kept = twin.register_forward_hook(lambda *_: None)
    _train(twin, _optimizer(twin))
    assert offloaded(twin).restore() is twin
    kept.remove()
    assert not _hooks(twin)
    assert not any("_apply" in module.__dict__ for module in twin.modules())
    assert all(type(each) is nn.Parameter for each in twin.parameters())
    assert not any(isinstance(each.grad, OffloadedTensor) for each in twin.parameters())
    assert _hooks(model)
    assert _train(model, _optimizer(model)) == _train(plain, _optimizer(plain))


def test_a_copy_outlives_the_model_with_all_that_training_needs() -> None:
    plain, model = _model(), _offloaded("offload")
    optimizer = _optimizer(plain)
    _train(plain, optimizer)
    state = copy.deepcopy(optimizer.state_dict())
    twin = copy.deepcopy(model)
    del model
    gc.collect()
    twin.load_state_dict(plain.state_dict())
    resumed = _optimizer(twin)
    resumed.load_state_dict(state)
    assert _train(twin, resumed) == _train(plain, optimizer)
    averages = [each["exp_avg"] for each in resumed.state.values()]
    assert any(isinstance(each, OffloadedTensor) for each in averages)
