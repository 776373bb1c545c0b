"""Element types that a model is estimated in, and its copy without contents."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from accelera.errors import ArgumentError, UnknownNameError

_KEPT_IN_FLOAT8 = torch.float8_e4m3fn


class ElementType(NamedTuple):
    """Element type of a model: how its weights are stored, and what it computes in."""

    name: str
    computes: torch.dtype
    """What floating-point inputs are given in."""
    prepare: Callable[[torch.nn.Module], None]
    """Changes a model to it, in place."""
    trains: bool = True


def element_type(name: str) -> ElementType:
    """Return the element type of that name.

    Raises
    ------
    UnknownNameError
        A name that is neither ``mixed``, ``float8``, nor one of torch's floating-point types.
    """
    if name == "mixed":
        return ElementType(name, torch.float32, autocast_in_bfloat16)
    if name == "float8":
        return ElementType(name, torch.bfloat16, keep_weights_in_float8, trains=False)
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or name not in _PLAIN:
        raise UnknownNameError.among("element type", name, (*_PLAIN, "mixed", "float8"))
    return ElementType(name, dtype, lambda module: convert(module, dtype))


_PLAIN = ("float64", "float32", "bfloat16", "float16")


def own_type(module: torch.nn.Module) -> str:
    """Return the name of the floating-point type that most bytes of ``module`` have; float32 for none."""
    sizes: Counter[str] = Counter({"float32": 0})
    for each in module.parameters():
        if each.is_floating_point():
            sizes[str(each.dtype).removeprefix("torch.")] += each.nbytes
    return sizes.most_common(1)[0][0]


def autocast_in_bfloat16(module: torch.nn.Module) -> None:
    """Keep ``module`` in float32 and compute its forward pass under autocast in bfloat16."""
    convert(module, torch.float32)
    module.forward = torch.autocast("cpu", torch.bfloat16)(module.forward)


def keep_weights_in_float8(module: torch.nn.Module) -> None:
    """Keep the weights of linear layers in float8, a scale per row, and compute in bfloat16.

    A weight is cast whenever its layer runs. Heads, tied weights and all other weights stay in bfloat16, as
    usual quantizers leave them.

    Raises
    ------
    ValueError
        No layer is of that kind.
    """
    convert(module, torch.bfloat16)
    layers = float8_layers(module)
    if not layers:
        raise ArgumentError(
            "[estimate] dtype='float8' keeps the weights of nn.Linear layers, and this model has none "
            "besides its head; ask for bfloat16"
        )
    for layer in layers:
        _keep_in_float8(layer)


def float8_layers(module: torch.nn.Module) -> list[torch.nn.Linear]:
    """Return the linear layers whose weights may be kept in float8."""
    uses = Counter(id(each) for part in module.modules() for each in part._parameters.values())
    head = getattr(module, "get_output_embeddings", lambda: None)()
    linear = (part for part in module.modules() if type(part) is torch.nn.Linear)
    return [part for part in linear if part is not head and uses[id(part.weight)] == 1]


def _keep_in_float8(layer: torch.nn.Linear) -> None:
    weight = layer.weight.detach()
    scale = torch.ones(weight.shape[0], 1, dtype=torch.float32, device=weight.device)
    layer.weight = torch.nn.Parameter(weight.to(_KEPT_IN_FLOAT8), requires_grad=False)
    layer.register_buffer("weight_scale", scale)
    layer.forward = MethodType(_cast_and_multiply, layer)  # type: ignore[method-assign]


def _cast_and_multiply(layer: Any, x: torch.Tensor) -> torch.Tensor:
    weight = layer.weight.to(x.dtype).mul_(layer.weight_scale)
    return functional.linear(x, weight, layer.bias)


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
