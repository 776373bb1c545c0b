"""Weights that a hook computes before each forward pass: pruned, weight-normalized, spectrally normalized."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from accelera.offload.tensor import OffloadedTensor, can_be_offloaded, wrap


def release_graphs(model: nn.Module) -> None:
    """Detach the derived weights of ``model`` from the parameters, which their graphs hold.

    The values stay; the next forward pass computes them again, with a new graph.
    """
    for module in model.modules():
        for name in _derived_names(module):
            value: Any = module.__dict__.get(name)
            if isinstance(value, torch.Tensor) and value.grad_fn is not None:
                setattr(module, name, value.detach())


def keep_in_pool(module: nn.Module) -> None:
    """Keep the derived weights of ``module`` in the pool, now and after each forward pass."""
    for part in module.modules():
        if any(True for _ in _derived_names(part)):
            _move_to_pool(part)
            part.register_forward_hook(_move_to_pool)


def keep_in_memory(module: nn.Module) -> None:
    """Undo ``keep_in_pool``."""
    for part in module.modules():
        for number in [number for number, hook in part._forward_hooks.items() if hook is _move_to_pool]:
            del part._forward_hooks[number]
        for name in _derived_names(part):
            value = part.__dict__.get(name)
            if isinstance(value, OffloadedTensor):
                setattr(part, name, value.materialized())


def _move_to_pool(module: nn.Module, *_: Any) -> None:
    weights = [weight for weight in module.parameters(recurse=False) if isinstance(weight, OffloadedTensor)]
    if torch.compiler.is_compiling() or not weights:
        return
    for name in _derived_names(module):
        value = module.__dict__.get(name)
        if isinstance(value, torch.Tensor) and can_be_offloaded(value):
            setattr(module, name, wrap(weights[0].cache, value.detach(), f"derived {name}"))


def _derived_names(module: nn.Module) -> Iterator[str]:
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, BasePruningMethod):
            yield str(hook._tensor_name)
        elif isinstance(hook, (SpectralNorm, WeightNorm)):
            yield hook.name
