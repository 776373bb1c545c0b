"""What computes."""

from accelera.devices.contract import Device, DeviceArray
from accelera.devices.cpu import CpuDevice

__all__ = ["CpuDevice", "Device", "DeviceArray", "get_device"]


def get_device(spec: object = None) -> Device:
    """Return the device called ``spec``."""
    return spec if isinstance(spec, Device) else CpuDevice()
