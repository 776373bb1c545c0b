"""What an operation would give, found without touching a byte."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from accelera.capture import shape_rule


def twin(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same sizes, strides and type that has no memory."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def foretold(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the results of ``func`` as tensors without memory."""
    kwargs = {name: value for name, value in kwargs.items() if name not in ("device", "pin_memory")}
    if "device" in {argument.name for argument in func._schema.arguments} and not _has_tensor(args):
        kwargs["device"] = torch.device("meta")
    args, kwargs = tree_map_only(torch.Tensor, twin, (args, kwargs))
    return (shape_rule(func) or func)(*args, **kwargs)


def _has_tensor(args: Any) -> bool:
    return any(isinstance(value, torch.Tensor) for value in args)


def bound(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return all arguments of a call by name, defaults included."""
    values = {argument.name: argument.default_value for argument in func._schema.arguments}
    values.update(zip(values, args, strict=False))
    return {**values, **kwargs}
