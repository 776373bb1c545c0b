"""A model without its contents: the same modules, with shapes in place of weights."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch


def twin(module: torch.nn.Module) -> torch.nn.Module:
    """Return a copy of ``module`` whose weights, buffers and other tensors have shapes and no contents.

    Tied weights stay tied. Nothing of the size of a weight is allocated.
    """
    memo: dict[int, Any] = {}
    for tensor in _tensors(module):
        memo.setdefault(id(tensor), _like(tensor, shape_of(tensor)))
    found = copy.deepcopy(module, memo)
    for part in found.modules():
        for name, value in list(vars(part).items()):
            if isinstance(value, torch.Tensor):
                del part.__dict__[name]
                part.register_buffer(name, value, persistent=False)
    return found


def shape_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same sizes, strides and type on ``meta``, which requires no gradient."""
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")


def convert(module: torch.nn.Module, dtype: torch.dtype) -> None:
    """Give every real weight and buffer of ``module`` the element type ``dtype``, in place."""
    converted: dict[int, Any] = {}
    for part in module.modules():
        for place in (part._parameters, part._buffers):
            for name, tensor in place.items():
                if tensor is not None and tensor.is_floating_point():
                    place[name] = converted.setdefault(id(tensor), _in_type(tensor, dtype))


def _tensors(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()
    for part in module.modules():
        yield from (value for value in vars(part).values() if isinstance(value, torch.Tensor))


def _in_type(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return _like(tensor, tensor.detach().to(dtype))


def _like(tensor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(value, requires_grad=tensor.requires_grad)
    return value.requires_grad_(tensor.requires_grad and tensor.is_leaf)
