"""Where resident bytes are: pages of RAM, or an accelerator's memory."""

from __future__ import annotations

from collections.abc import Callable

import torch

from accelera._native import Arena
from accelera.devices import Device, SimulatedDevice
from accelera.offload.places.contract import TensorPlace
from accelera.offload.places.cpu import CpuPlace
from accelera.offload.places.simulated import SimulatedPlace

__all__ = ["CpuPlace", "SimulatedPlace", "TensorPlace", "place_on", "tensor_device"]


def tensor_device(device: Device) -> torch.device:
    """Return torch's device of the tensors on ``device``: a simulated one computes with the CPU's."""
    return torch.device("cpu" if isinstance(device, SimulatedDevice) else device.name)


def place_on(device: Device | torch.device | str | None, arena: Callable[[], Arena]) -> TensorPlace:
    """Return the memory of ``device``, None meaning the CPU, where ``arena`` makes the memory of tensors.

    Raises DeviceError when the device is not there.
    """
    if isinstance(device, SimulatedDevice):
        return SimulatedPlace(device, arena())
    named = (
        tensor_device(device)
        if isinstance(device, Device)
        else torch.device("cpu" if device is None else device)
    )
    if named.type == "cpu":
        return CpuPlace(arena())
    from accelera.offload.places.accelerator import AcceleratorPlace

    return AcceleratorPlace(str(named))
