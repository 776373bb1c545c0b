"""Ordinary tensors taken over: their bytes go to the keeper, an offloaded tensor stands for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from accelera.errors import DeviceError
from accelera.offload.keeping.plain import PLAIN_TYPES
from accelera.offload.tensors.contents import Contents
from accelera.offload.tensors.results import dense, memory_order
from accelera.offload.tensors.tensor import OffloadedTensor

if TYPE_CHECKING:
    from accelera.offload.keeping.keeper import Keeper


def adopted(keeper: Keeper, tensor: torch.Tensor, name: str = "", role: str = "weight") -> OffloadedTensor:
    """Return an offloaded tensor with the values, sizes and strides of ``tensor``.

    What is not dense, such as an expanded tensor, gets the strides of a contiguous one. Raises DeviceError
    for a tensor that has no bytes to take over.
    """
    check(tensor, name)
    plain = tensor.detach().resolve_conj().resolve_neg()
    if not dense(plain):
        plain = plain.contiguous()
    in_order = plain if plain.is_contiguous() else plain.permute(memory_order(plain))
    contents = Contents(keeper, keeper.adopt(in_order, name, role), in_order.shape, plain.dtype)
    return OffloadedTensor(contents, plain.shape, plain.stride())


def adopted_together(
    keeper: Keeper, tensors: list[torch.Tensor], name: str = "", role: str = "weight"
) -> list[OffloadedTensor]:
    """Return offloaded tensors that share their bytes as ``tensors`` share one storage."""
    first = tensors[0].detach()
    check(first, name)
    count = first.untyped_storage().nbytes() // first.element_size()
    flat = first.as_strided((count,), (1,), 0)
    contents = Contents(keeper, keeper.adopt(flat, name, role), flat.shape, flat.dtype)
    return [
        OffloadedTensor(contents, one.shape, one.stride(), one.storage_offset(), one.dtype) for one in tensors
    ]


def can_be_adopted(tensor: torch.Tensor) -> bool:
    """Whether the bytes of ``tensor`` can stream: it is strided, not quantized, of no other subclass."""
    kinds = (*PLAIN_TYPES, torch.nn.Parameter, torch.nn.Buffer)
    return type(tensor) in kinds and tensor.layout is torch.strided and not tensor.is_quantized


def check_values(tensor: torch.Tensor, name: str) -> None:
    """Raise DeviceError for a tensor on the meta device."""
    if tensor.device.type == "meta":
        raise DeviceError(
            f"[offload] {name or 'a tensor'} {tuple(tensor.shape)} is on the meta device: it has no values; "
            "load a checkpoint with accelera.offload_checkpoint, or build the model on the CPU"
        )


def check(tensor: torch.Tensor, name: str) -> None:
    """Raise DeviceError for a tensor without bytes, or of a kind that cannot be taken over."""
    check_values(tensor, name)
    if not can_be_adopted(tensor):
        raise DeviceError(
            f"[offload] {name or 'the tensor'} is a {type(tensor).__name__} of layout {tensor.layout}: only "
            "dense tensors can be offloaded; keep it an ordinary one"
        )
