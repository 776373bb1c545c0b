"""Devices by name."""

from __future__ import annotations

import functools

from accelera.devices.contract import Device
from accelera.devices.cpu import CpuDevice
from accelera.errors import UnknownNameError


def get_device(spec: Device | str | None = None) -> Device:
    """Return the device that ``spec`` names."""
    if isinstance(spec, Device):
        return spec
    if spec in (None, "cpu"):
        return _cpu()
    raise UnknownNameError.among("device", str(spec), ["cpu"])


@functools.cache
def _cpu() -> Device:
    return CpuDevice()
