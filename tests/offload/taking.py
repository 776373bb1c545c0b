"""Models that train with their weights in a cache, beside the same models without."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from accelera.offload.module import swap_in
from accelera.offload.training.hooks import Training
from tests.offload.pools import values


def taken(model: nn.Module, cache: Any, activations: str = "keep") -> nn.Module:
    """Return a copy of ``model`` that trains with its weights in ``cache``."""
    model = copy.deepcopy(model)
    swap_in(model, cache)
    model.training_hooks = Training(model, cache, activations)  # type: ignore[assignment]
    return model


def assert_same_weights(model: nn.Module, other: nn.Module, **tolerance: Any) -> None:
    """Compare the parameters of two models, one of which may be offloaded."""
    for (name, one), two in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(
            values(one), values(two), msg=lambda text, name=name: f"{name}: {text}", **tolerance
        )
