"""Where resident bytes are: pages of RAM, or an accelerator's memory."""

from __future__ import annotations

import torch

from accelera.offload.places.contract import TensorPlace
from accelera.offload.places.cpu import CpuPlace

__all__ = ["CpuPlace", "TensorPlace", "place_on"]


def place_on(device: torch.device | str | None) -> TensorPlace:
    """Return the memory of ``device``, None meaning the CPU; raises DeviceError when it is not there."""
    named = torch.device("cpu" if device is None else device)
    if named.type == "cpu":
        return CpuPlace()
    from accelera.offload.places.accelerator import AcceleratorPlace

    return AcceleratorPlace(str(named))
