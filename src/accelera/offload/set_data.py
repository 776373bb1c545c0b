"""Refusal of ``ordinary.data = offloaded``, after which the ordinary tensor would have no storage."""

from __future__ import annotations

from functools import cache

import torch

from accelera.devices._internal import present_accelerator
from accelera.errors import DeviceError
from accelera.offload.tensor import OffloadedTensor, implements

_OPERATOR = "_has_compatible_shallow_copy_type"
"""Operator by which torch checks every assignment to ``.data``, before it changes anything."""


@cache
def refuse_offloaded_data() -> torch.library.Library:
    """Refuse offloaded data for ordinary tensors in this process from now on; return the registration.

    The next use of such a tensor would end the process.
    """
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    accelerator = present_accelerator()
    for kind in {"cpu", "cpu" if accelerator is None else accelerator.type}:
        library.impl(_OPERATOR, _has_compatible_type, f"Autograd{kind.upper()}")  # type: ignore[no-untyped-call]
    return library


def _has_compatible_type(tensor: torch.Tensor, data: torch.Tensor) -> bool:
    _check(tensor, data)
    with torch._C._AutoDispatchBelowAutograd(), torch._C._DisableTorchDispatch():
        return bool(torch._has_compatible_shallow_copy_type(tensor, data))


@implements(_OPERATOR)
def _has_compatible_offloaded_type(_: object, args: tuple[torch.Tensor, torch.Tensor], __: object) -> bool:
    """Check an assignment in inference mode, where no autograd key stands before the dispatch."""
    return _has_compatible_type(*args)


def _check(tensor: torch.Tensor, data: torch.Tensor) -> None:
    if isinstance(data, OffloadedTensor) and not isinstance(tensor, OffloadedTensor):
        raise DeviceError(
            f"[set_data] .data of an ordinary {type(tensor).__name__} {tuple(tensor.shape)} is set to the "
            f"offloaded {data}, which has no storage to share: set it to a copy, "
            ".data = value.materialized(), or let both modules hold the offloaded parameter itself"
        )
