"""Models whose weights are in a keeper that counts, beside the same models without."""

from __future__ import annotations

import copy

import torch
from torch import nn

from accelera.offload.adopting import adopted
from accelera.offload.tensor import OffloadedTensor
from accelera.offload.training import Training


def taken(model: nn.Module, keeper: object, activations: str = "keep") -> nn.Module:
    """Return a copy of ``model`` with its weights in ``keeper``, tied ones once."""
    model = copy.deepcopy(model)
    memo: dict[int, nn.Parameter] = {}
    for prefix, module in model.named_modules():
        for name, weight in list(module._parameters.items()):
            if weight is not None and weight.nbytes >= keeper.least_bytes:
                if id(weight) not in memo:
                    values = adopted(keeper, weight.detach(), f"{prefix}.{name}")
                    memo[id(weight)] = nn.Parameter(values, requires_grad=weight.requires_grad)
                module._parameters[name] = memo[id(weight)]
    model.training_hooks = Training(model, keeper, activations)
    return model


def values(tensor: torch.Tensor) -> torch.Tensor:
    """Return an ordinary tensor with the same values."""
    return tensor.materialized() if isinstance(tensor, OffloadedTensor) else tensor.detach()


def assert_same_weights(model: nn.Module, other: nn.Module, **tolerance: float) -> None:
    """Compare the parameters of two models, one of which may be offloaded."""
    for (name, one), two in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(values(one), values(two), msg=lambda text, name=name: f"{name}: {text}", **tolerance)
