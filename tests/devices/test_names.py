"""Devices by name, and torch left alone where it is not needed."""

from __future__ import annotations

import glob
import subprocess
import sys

import pytest
import torch

from accelera.devices import CpuDevice, SimulatedDevice, get_device, names
from accelera.errors import DeviceError, UnknownNameError


def test_the_cpu_is_one_object() -> None:
    cpu = get_device("cpu")
    assert isinstance(cpu, CpuDevice)
    assert cpu is get_device("CPU") is get_device(torch.device("cpu")) is get_device("cpu:0")
    assert get_device(cpu) is cpu


def test_each_simulated_device_is_new() -> None:
    first, second = get_device("sim"), get_device("sim:512MiB")
    assert isinstance(first, SimulatedDevice)
    assert isinstance(second, SimulatedDevice)
    assert second.total_bytes() == 512 << 20
    assert get_device("sim") is not first
    assert get_device(first) is first


@pytest.mark.parametrize(
    ("asked", "hint"), [("cdua", "cuda"), ("simm:1", "sim"), ("warp", "known: cpu, cuda")]
)
def test_unknown_names_are_answered_with_near_ones(asked: str, hint: str) -> None:
    with pytest.raises(UnknownNameError, match=hint):
        get_device(asked)


def test_an_accelerator_that_is_not_there() -> None:
    absent = "xpu" if torch.cuda.is_available() else "cuda"
    for spec in (absent, f"{absent}:1", torch.device(absent, 0)):
        with pytest.raises(DeviceError, match=rf"{absent}.* was asked for, and torch"):
            get_device(spec)


def test_there_is_no_second_cpu() -> None:
    with pytest.raises(DeviceError, match="one device"):
        get_device("cpu:3")


def test_the_setting_names_the_usual_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERA_DEVICE", "sim:3MiB")
    assert get_device().total_bytes() == 3 << 20
    assert get_device("cpu").name == "cpu"


@pytest.mark.skipif(torch.accelerator.is_available(), reason="this machine has an accelerator")
def test_the_usual_device_is_the_cpu_without_an_accelerator() -> None:
    assert get_device() is get_device("cpu")


@pytest.mark.cuda
def test_the_usual_device_is_the_accelerator() -> None:
    assert get_device() is get_device("cuda") is get_device("cuda:0")


@pytest.mark.skipif(
    any(map(glob.glob, names._DEVICE_FILES)), reason="a driver is here, so torch has to be asked"
)
def test_torch_is_not_loaded_to_find_out_that_there_is_nothing() -> None:
    code = "import sys, accelera.devices as d; print(d.get_device().name, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["cpu", "False"]
