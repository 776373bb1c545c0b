"""What computes: the CPU, any torch accelerator, and a simulated accelerator."""

from __future__ import annotations

from accelera.devices.contract import Device, DeviceArray
from accelera.devices.cpu import CpuDevice
from accelera.devices.names import get_device
from accelera.devices.processors import usable_processors
from accelera.devices.simulated import SimulatedDevice, SimulationReport

__all__ = [
    "CpuDevice",
    "Device",
    "DeviceArray",
    "SimulatedDevice",
    "SimulationReport",
    "get_device",
    "usable_processors",
]
