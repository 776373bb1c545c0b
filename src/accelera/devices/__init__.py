"""Devices that compute: the CPU, any torch accelerator, and a simulated accelerator.

Everything is loaded when it is first named: who asks for processors alone does not load NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelera._lazily import opened

if TYPE_CHECKING:
    from accelera.devices.contract import Device as Device
    from accelera.devices.contract import DeviceArray as DeviceArray
    from accelera.devices.cpu import CpuDevice as CpuDevice
    from accelera.devices.names import get_device as get_device
    from accelera.devices.names import present_accelerator as present_accelerator
    from accelera.devices.out_of_memory import is_out_of_memory as is_out_of_memory
    from accelera.devices.out_of_memory import says_out_of_memory as says_out_of_memory
    from accelera.devices.out_of_memory import words_of as words_of
    from accelera.devices.simulated import SimulatedDevice as SimulatedDevice
    from accelera.devices.simulated import SimulationReport as SimulationReport
    from accelera.devices.threads import usable_processors as usable_processors
    from accelera.devices.torch_streams import wait_for_current_work as wait_for_current_work

_FILE_OF = {
    "CpuDevice": "cpu",
    "Device": "contract",
    "DeviceArray": "contract",
    "SimulatedDevice": "simulated",
    "SimulationReport": "simulated",
    "get_device": "names",
    "present_accelerator": "names",
    "is_out_of_memory": "out_of_memory",
    "says_out_of_memory": "out_of_memory",
    "usable_processors": "threads",
    "wait_for_current_work": "torch_streams",
    "words_of": "out_of_memory",
}

__all__ = [*_FILE_OF]

__getattr__, __dir__ = opened("accelera.devices", _FILE_OF)
