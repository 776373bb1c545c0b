"""Tensors that become something else without losing their identity."""

from __future__ import annotations

from typing import Any

import torch

from accelera.errors import DeviceError
from accelera.offload.tensors.adopting import adopted
from accelera.offload.tensors.tensor import OffloadedTensor, kind_of


def replace_data(tensor: OffloadedTensor, value: torch.Tensor) -> None:
    """Make ``tensor`` what ``value`` is: ``tensor.data = value``.

    Values of an ordinary tensor are taken over by the keeper. Raises DeviceError when they are elsewhere than
    on the device that computes.
    """
    device = tensor.keeper.device
    if value.device != device:
        raise DeviceError(
            f"[offload] {tensor} computes on {device} and cannot be moved to {value.device}; take the model "
            "back with offloaded(model).restore(), then move it"
        )
    first = tensor.blocks[0]
    if not isinstance(value, OffloadedTensor):
        value = adopted(tensor.keeper, value, first.name, first.role)
    for block in value.blocks:
        block.name, block.role = (block.name, block.role) if block.name else (first.name, first.role)
    torch._C.TensorBase.data.__set__(tensor, value.detach())  # type: ignore[attr-defined]
    tensor.contents = value.contents


def without_history(tensor: OffloadedTensor) -> OffloadedTensor:
    """Return the same bytes without history and with a count of changes of its own: ``tensor.data``."""
    with torch._C._DisableTorchDispatch():
        bare = torch._C.TensorBase.data.__get__(tensor)  # type: ignore[attr-defined]
        made: OffloadedTensor = torch.Tensor._make_subclass(kind_of(tensor.contents), bare)
    made.contents = tensor.contents
    return made


def set_tensor(_: Any, args: Any, __: Any) -> OffloadedTensor:
    """Make the first argument what the second is: ``tensor.set_(other)``."""
    replace_data(*args)
    changed: OffloadedTensor = args[0]
    return changed


def check_free(tensor: torch.Tensor, name: str) -> None:
    """Raise DeviceError when a graph of autograd still holds ``tensor``: it cannot ``become`` another."""
    if tensor._use_count() > 1:  # type: ignore[attr-defined]
        raise DeviceError(
            f"[offload] {name} {tuple(tensor.shape)} is held by a graph of autograd or by a compiled model; "
            "do this before the forward pass, or after its results are gone"
        )


def become(tensor: torch.Tensor, other: torch.Tensor, name: str) -> None:
    """Make ``tensor`` what ``other`` is; whoever holds ``tensor`` then holds that.

    Gradient and hooks stay. ``other`` is of no use afterwards. Raises DeviceError when a graph of autograd
    still holds the tensor.
    """
    check_free(tensor, name)
    hooks, late = tensor._backward_hooks, getattr(tensor, "_post_accumulate_grad_hooks", None)
    with torch.no_grad():
        other.requires_grad_(tensor.requires_grad)
        other.grad = tensor.grad
    _swap(tensor, other)
    if hooks is not None:
        tensor._backward_hooks = hooks
    if late is not None:
        tensor._post_accumulate_grad_hooks = late


def _swap(tensor: torch.Tensor, other: torch.Tensor) -> None:
    """Exchange everything but identity and the user's attributes."""
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    contents = other.__dict__.pop("contents", None)
    tensor.__class__, other.__class__ = type(other), type(tensor)
    torch._C._swap_tensor_impl(tensor, other)
    for name in ("contents", "_is_param"):
        tensor.__dict__.pop(name, None)
    if contents is not None:
        tensor.__dict__["contents"] = contents
        tensor.__dict__.update({"_is_param": True} if is_parameter else {})
