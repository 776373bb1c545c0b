"""Moves gradients into the pool as soon as autograd has added them up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from accelera.errors import DTypeError
from accelera.offload.tensors.tensor import OffloadedTensor
from accelera.offload.tiled.results import offloaded


def keep_gradients(parameters: Iterable[torch.nn.Parameter]) -> None:
    """See to it that the gradients of offloaded parameters go to the pool; those that are known stay so."""
    for parameter in parameters:
        if parameter.requires_grad and isinstance(parameter, OffloadedTensor) and not _watched(parameter):
            parameter.register_post_accumulate_grad_hook(move_gradient)  # type: ignore[no-untyped-call]


def move_gradient(parameter: torch.Tensor) -> None:
    """Replace an ordinary ``.grad`` of an offloaded parameter by one in the pool.

    A sparse gradient stays where it is: it has only the rows that were used. Raises DTypeError for a sparse
    gradient of a parameter in several blocks.
    """
    gradient = parameter.grad
    if (
        gradient is None
        or isinstance(gradient, OffloadedTensor)
        or not isinstance(parameter, OffloadedTensor)
    ):
        return
    if gradient.layout != torch.strided:
        _refuse_cut(parameter)
        return
    name = f"{parameter.blocks[0].name}.grad"
    kept = offloaded(parameter.keeper, gradient.shape, gradient.dtype, name=name, role="gradient")
    with torch.no_grad():
        kept.copy_(gradient)
    parameter.grad = kept


def _watched(parameter: torch.Tensor) -> bool:
    hooks: Any = parameter._post_accumulate_grad_hooks
    return hooks is not None and move_gradient in hooks.values()


def _refuse_cut(parameter: OffloadedTensor) -> None:
    if len(parameter.blocks) > 1:
        raise DTypeError(
            f"[backward] the sparse gradient of {parameter.blocks[0].name} {tuple(parameter.shape)}: this "
            f"weight is kept in {len(parameter.blocks)} blocks, and only dense gradients can be; make the "
            "embedding with sparse=False"
        )
