"""Where resident bytes are: pages of RAM, or an accelerator's memory."""

from __future__ import annotations

from collections.abc import Callable

import torch

from accelera._native import Arena
from accelera.offload.places.contract import TensorPlace
from accelera.offload.places.cpu import CpuPlace

__all__ = ["CpuPlace", "TensorPlace", "place_on"]


def place_on(device: torch.device | str | None, arena: Callable[[], Arena]) -> TensorPlace:
    """Return the memory of ``device``, None meaning the CPU, where ``arena`` makes the memory of blocks.

    Raises DeviceError when the device is not there.
    """
    named = torch.device("cpu" if device is None else device)
    if named.type == "cpu":
        return CpuPlace(arena())
    from accelera.offload.places.accelerator import AcceleratorPlace

    return AcceleratorPlace(str(named))
