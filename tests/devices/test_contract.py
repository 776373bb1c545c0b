"""Every device, held to the one contract."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from accelera._native import cuda_compiled
from accelera.devices import Device, SimulatedDevice, get_device
from accelera.testing import DeviceContract, FakeCuda


class TestCpu(DeviceContract):
    def make_device(self) -> Device:
        return get_device("cpu")


class TestSimulated(DeviceContract):
    def make_device(self) -> Device:
        return SimulatedDevice("64MiB")


class TestTorchOnTheCpu(DeviceContract):
    def make_device(self) -> Device:
        return _torch_on_the_cpu()


@pytest.fixture(scope="class")
def fake_cuda() -> Iterator[FakeCuda]:
    with FakeCuda("1GiB") as fake:
        yield fake


@pytest.mark.usefixtures("fake_cuda")
class TestTorchOnAFakeGpu(DeviceContract):
    """Every race and every copy that comes too late shows."""

    integers = False

    def make_device(self) -> Device:
        return get_device("cuda")


@pytest.mark.cuda
class TestCuda(DeviceContract):
    integers = cuda_compiled()

    def make_device(self) -> Device:
        return get_device("cuda")


@functools.cache
def _torch_on_the_cpu() -> Device:
    from accelera.devices.torch_device import TorchDevice

    return TorchDevice("cpu")
