"""``activations="auto"`` runs in every budget in which ``"offload"`` runs, with the same losses."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
import torch
from torch import nn

from accelera import BudgetExceededError, offload, offloaded

MIB = 1 << 20


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.narrow(nn.functional.gelu(self.wide(self.norm(x))))


class DroppedLayers(nn.Sequential):
    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__(*blocks)
        self.dice = random.Random(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self:
            if self.dice.random() > 0.3:
                x = block(x)
        return x


def convolutions() -> nn.Module:
    layers = [nn.Conv2d(24, 24, 3, padding=1), nn.BatchNorm2d(24), nn.SiLU(), nn.Dropout(0.2)]
    return nn.Sequential(*[each for _ in range(4) for each in layers])


def funnel() -> nn.Module:
    widths = [256, 1024, 64, 1024, 256]
    pairs = itertools.pairwise(widths)
    return nn.Sequential(*[each for pair in pairs for each in (nn.Linear(*pair), nn.Softplus())])


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "blocks": (lambda: nn.Sequential(*[Block(192) for _ in range(5)]), (900, 192)),
    "dropped layers": (lambda: DroppedLayers(*[Block(192) for _ in range(6)]), (900, 192)),
    "convolutions": (convolutions, (6, 24, 40, 40)),
    "funnel": (funnel, (700, 256)),
}


def loss_of_training(name: str, activations: str, budget: int) -> float | None:
    """Return the loss of the third step; None when the budget is refused."""
    build, shape = MODELS[name]
    torch.manual_seed(0)
    model = build().train()
    try:
        offload(model, budget, activations=activations)
    except BudgetExceededError:
        return None
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    try:
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.randn(*shape)).square().mean()
            loss.backward()
            optimizer.step()
    except BudgetExceededError:
        return None
    finally:
        offloaded(model).close()
    return loss.item()


@pytest.mark.parametrize("name", MODELS)
def test_auto_runs_wherever_offload_runs(name: str) -> None:
    differences, runs = [], 0
    for budget in range(26, 46, 2):
        expected = loss_of_training(name, "offload", budget * MIB)
        actual = loss_of_training(name, "auto", budget * MIB)
        runs += expected is not None
        if expected is not None and actual != pytest.approx(expected, rel=1e-5):
            differences.append((budget, expected, actual))
    assert not differences
    assert runs >= 4, "the budgets are too small for this model"
