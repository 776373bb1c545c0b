"""The floor that a recorded step names is enough for the same training from its first step on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import accelera.tensora as ts
from accelera.tensora import functional, nn, optim


def layers(width: int, depth: int, rows: int) -> tuple[Any, tuple[int, ...]]:
    modules = [
        each for _ in range(depth) for each in (nn.Linear(width, width), nn.LayerNorm(width), nn.GELU())
    ]
    return nn.Sequential(*modules), (rows, width)


def images(channels: int, rows: int) -> tuple[Any, tuple[int, ...]]:
    modules = [nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(2)]
    modules += [nn.Conv2d(channels, channels, 3), nn.SiLU(), nn.Flatten()]
    return nn.Sequential(*modules), (rows, 3, 14, 14)


def sequences(width: int, rows: int) -> tuple[Any, tuple[int, ...]]:
    return nn.TransformerEncoderLayer(width, 2, 2 * width, 0.0, batch_first=True), (rows, 12, width)


NETWORKS: dict[str, Callable[[], tuple[Any, tuple[int, ...]]]] = {
    "deep": lambda: layers(40, 4, 90),
    "wide": lambda: layers(90, 2, 30),
    "wider than high": lambda: layers(128, 3, 5),
    "images": lambda: images(10, 7),
    "sequences": lambda: sequences(24, 6),
}
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "adam": lambda params: optim.Adam(params, lr=1e-3),
    "sgd": lambda params: optim.SGD(params, lr=1e-2, momentum=0.9),
    "rmsprop": lambda params: optim.RMSprop(params, lr=1e-3),
}


def trained(network: str, optimizer: str, limit: int | str) -> tuple[int, float]:
    """Return the floor after four steps, and the loss of the last one."""
    ts.random.manual_seed(5)
    model, shape = NETWORKS[network]()
    update = OPTIMIZERS[optimizer](model.parameters())
    x, budget = ts.random.randn(*shape), ts.budget(limit)
    for _ in range(4):
        with budget:
            update.zero_grad()
            loss = functional.softmax(model(x), dim=-1).square().mean()
            loss.backward()
            update.step()
    assert budget.report.peak_bytes <= budget.limit_bytes
    return budget.staircase()[-1].peak_bytes, loss.item()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("network", NETWORKS)
def test_the_floor_is_enough_from_the_first_step(network: str, optimizer: str) -> None:
    before = ts.memory_stats().live_bytes
    floor, expected = trained(network, optimizer, "64MiB")
    leftover = ts.memory_stats().live_bytes - before
    _, actual = trained(network, optimizer, floor + leftover)
    assert actual == expected
