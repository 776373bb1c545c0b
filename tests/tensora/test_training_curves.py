"""Training: the same losses as PyTorch's over a hundred steps, from the same weights and data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import accelera.tensora as ts
from accelera.tensora import nn, optim

STEPS = 100


class Block:
    """Layers that both libraries have under the same names."""

    @staticmethod
    def mlp(library: Any) -> Any:
        return library.Sequential(
            library.Linear(20, 32), library.LayerNorm(32), library.GELU(),
            library.Linear(32, 32), library.Tanh(), library.Linear(32, 5),
        )  # fmt: skip

    @staticmethod
    def cnn(library: Any) -> Any:
        return library.Sequential(
            library.Conv2d(1, 8, 3, padding=1), library.BatchNorm2d(8), library.ReLU(), library.MaxPool2d(2),
            library.Conv2d(8, 12, 3, padding=1, groups=2), library.SiLU(), library.AdaptiveAvgPool2d(2),
            library.Flatten(), library.Linear(48, 5),
        )  # fmt: skip

    @staticmethod
    def transformer(library: Any) -> Any:
        layer = library.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, activation="gelu")
        return library.Sequential(
            library.Embedding(11, 16),
            library.TransformerEncoder(layer, 2),
            library.Flatten(),
            library.Linear(96, 5),
        )


DATA = {
    "mlp": lambda random, n: random.normal(size=(n, 20)),
    "cnn": lambda random, n: random.normal(size=(n, 1, 8, 8)),
    "transformer": lambda random, n: random.integers(0, 11, size=(n, 6)),
}
RECIPES: Any = {
    "mlp": (
        "SGD",
        {"lr": 0.05, "momentum": 0.9, "nesterov": True},
        "OneCycleLR",
        {"max_lr": 0.1, "total_steps": 101},
    ),
    "cnn": ("Adam", {"lr": 3e-3}, "CosineAnnealingLR", {"T_max": 50}),
    "transformer": ("AdamW", {"lr": 2e-3, "weight_decay": 0.05}, "StepLR", {"step_size": 30, "gamma": 0.5}),
}


def batches(kind: str) -> list[tuple[Any, Any]]:
    random = np.random.default_rng(3)
    inputs = [DATA[kind](random, 16) for _ in range(STEPS)]
    return [(x, x.reshape(16, -1)[:, :5].argmax(1)) for x in inputs]


def curve(kind: str, libraries: tuple[Any, Any], model: Any, data: list[tuple[Any, Any]]) -> list[float]:
    modules, optimizers = libraries
    name, options, schedule_name, schedule_options = RECIPES[kind]
    optimizer = getattr(optimizers, name)(model.parameters(), **options)
    schedule = getattr(optimizers.lr_scheduler, schedule_name)(optimizer, **schedule_options)
    loss_of = modules.CrossEntropyLoss(label_smoothing=0.1)
    clip = modules.utils.clip_grad_norm_
    losses = []
    for inputs, targets in data:
        optimizer.zero_grad()
        loss = loss_of(model(inputs), targets)
        loss.backward()
        clip(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("kind", DATA)
def test_a_hundred_steps_have_pytorchs_losses(kind: str) -> None:
    torch.manual_seed(0)
    theirs = getattr(Block, kind)(torch.nn).double()
    mine = getattr(Block, kind)(nn).double()
    mine.load_state_dict({name: each.numpy() for name, each in theirs.state_dict().items()})
    data = batches(kind)
    found = curve(kind, (nn, optim), mine, [(ts.tensor(x), ts.tensor(y)) for x, y in data])
    expected = curve(
        kind, (torch.nn, torch.optim), theirs, [(torch.tensor(x), torch.tensor(y)) for x, y in data]
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert np.mean(found[-10:]) < np.mean(found[:10])
    for name, each in theirs.state_dict().items():
        np.testing.assert_allclose(mine.state_dict()[name].numpy(), each.numpy(), rtol=1e-5, atol=1e-7)
