"""Offloaded tensors copied: to ordinary memory, within the pool, or to a pickle without taking memory."""

from __future__ import annotations

import copy
from typing import Any

import torch

from accelera.offload.tensors.contents import Contents
from accelera.offload.tensors.results import dense, like
from accelera.offload.tensors.tensor import OffloadedTensor

_OWN = ("contents", "_is_param", "is_state", "_shown")
"""Attributes that say what an offloaded tensor is; all others are the user's."""


def ordinary_copy(tensor: OffloadedTensor) -> torch.Tensor:
    """Return an ordinary tensor on the same device with the values of ``tensor``."""
    with torch.no_grad():
        strides = tensor.stride() if dense(tensor) else torch.empty(tensor.shape, device="meta").stride()
        result = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
        return result.copy_(tensor.detach())


def deep_copy(tensor: OffloadedTensor, memo: dict[int, Any]) -> OffloadedTensor:
    """Return a copy with contents of its own in the same keeper; what shared contents still does.

    Raises RuntimeError for a tensor that is the result of a differentiable operation, as PyTorch does.
    """
    if id(tensor) in memo:
        known: OffloadedTensor = memo[id(tensor)]
        return known
    if not tensor.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol"
        )
    contents = _copied(tensor.contents, memo)
    made = OffloadedTensor(contents, tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype)
    memo[id(tensor)] = made
    made.requires_grad_(tensor.requires_grad)
    if hasattr(tensor, "_is_param"):
        made._is_param = True
    if tensor.grad is not None:
        made.grad = copy.deepcopy(tensor.grad, memo)
    made.__dict__.update(copy.deepcopy(_attributes(tensor), memo))
    return made


def _copied(contents: Contents, memo: dict[int, Any]) -> Contents:
    if id(contents) not in memo:
        whole = whole_of(contents)
        first = contents.blocks[0]
        memo[id(contents)] = like(contents.keeper, whole, first.name, first.role)
        memo[id(contents)].copy_(whole)
    copied: Contents = memo[id(contents)].contents
    return copied


def whole_of(contents: Contents) -> OffloadedTensor:
    """Return all of ``contents`` as one contiguous tensor."""
    strides = torch.empty(contents.shape, device="meta").stride()
    return OffloadedTensor(contents, contents.shape, strides)


def as_mapped(tensor: OffloadedTensor, version: int | None = None) -> torch.Tensor:
    """Return an ordinary tensor or parameter over the file where the bytes are; it takes no anonymous memory.

    Tensors that share contents share its storage. Another ``version`` than before is shown anew.
    """
    return over(tensor.contents.mapped(version), tensor)


def over(flat: torch.Tensor, tensor: OffloadedTensor) -> torch.Tensor:
    """Return ``tensor`` as an ordinary tensor or parameter over the bytes of its contents in ``flat``."""
    typed = flat.view(tensor.dtype)
    plain = typed.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    if tensor.is_conj():
        plain = plain.conj()
    if tensor.is_neg():
        torch._C._set_neg(plain, True)
    if hasattr(tensor, "_is_param"):
        plain = torch.nn.Parameter(plain, requires_grad=tensor.requires_grad)
    elif tensor.requires_grad:
        plain.requires_grad_()
    plain.__dict__.update(_attributes(tensor))
    return plain


def _attributes(tensor: OffloadedTensor) -> dict[str, Any]:
    return {name: value for name, value in tensor.__dict__.items() if name not in _OWN}
