"""Lazy layers, whose parameters have no shape before their first forward pass."""

from __future__ import annotations

import torch
from torch.nn.parameter import is_lazy

from accelera.errors import DeviceError


def refuse_lazy_layers(op: str, model: torch.nn.Module) -> None:
    """Raise DeviceError, with the names of the layers, for a model with uninitialized parameters."""
    names = [
        f"{name or 'the model'} ({type(module).__name__})"
        for name, module in model.named_modules()
        if any(is_lazy(tensor) for tensor in (*module._parameters.values(), *module._buffers.values()))
    ]
    if names:
        raise DeviceError(
            f"[{op}] the parameters of {', '.join(names[:4])}{' and others' * (len(names) > 4)} are not "
            "initialized, as lazy layers learn their shapes from their first inputs: run the model once on "
            "example inputs first"
        )
