"""Every device, held to the one contract."""

from __future__ import annotations

import functools

import pytest

from accelera._native import cuda_compiled
from accelera.devices import Device, SimulatedDevice, get_device
from accelera.testing import DeviceContract


class TestCpu(DeviceContract):
    def make_device(self) -> Device:
        return get_device("cpu")


class TestSimulated(DeviceContract):
    def make_device(self) -> Device:
        return SimulatedDevice("64MiB")


class TestTorchOnTheCpu(DeviceContract):
    def make_device(self) -> Device:
        return _torch_on_the_cpu()


@pytest.mark.cuda
class TestCuda(DeviceContract):
    integers = cuda_compiled()

    def make_device(self) -> Device:
        return get_device("cuda")


@functools.cache
def _torch_on_the_cpu() -> Device:
    from accelera.devices.torch_device import TorchDevice

    return TorchDevice("cpu")
