"""Models that train with their weights in a keeper, beside the same models without."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from accelera.offload.tensors.taking import take_over
from accelera.offload.training.training import Training
from tests.offload.pools import values


def taken(model: nn.Module, keeper: Any, activations: str = "keep") -> nn.Module:
    """Return a copy of ``model`` that trains with its weights in ``keeper``."""
    model = copy.deepcopy(model)
    take_over(model, keeper)
    model.training_hooks = Training(model, keeper, activations)
    return model


def assert_same_weights(model: nn.Module, other: nn.Module, **tolerance: float) -> None:
    """Compare the parameters of two models, one of which may be offloaded."""
    for (name, one), two in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(
            values(one), values(two), msg=lambda text, name=name: f"{name}: {text}", **tolerance
        )
