"""Devices by name. A new kind of device is one file and one line here."""

from __future__ import annotations

import functools
import glob
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, overload

from accelera._extras import is_there, needed_for
from accelera.devices.contract import Device
from accelera.devices.cpu import CpuDevice
from accelera.devices.simulated import SimulatedDevice
from accelera.errors import DeviceError, UnknownNameError
from accelera.settings import current

if TYPE_CHECKING:
    import torch


def present_accelerator() -> torch.device | None:
    """Return torch's device of the accelerator that is here, without an index; None where there is none.

    A torch that was built for CUDA names that as its accelerator on machines without a GPU, too. Without
    torch there is none.
    """
    if not is_there("torch"):
        return None
    import torch

    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None


def checked_name(kind: str, index: str) -> str:
    """Return the full name of an accelerator that this machine has; raises DeviceError when it has not.

    Raises BackendMissingError without torch.
    """
    with needed_for("device"):
        import torch
    asked = f"{kind}:{index}" if index else kind
    found = present_accelerator()
    if found is None or found.type != kind:
        has = f"it finds {found.type}" if found is not None else "it finds no accelerator"
        raise DeviceError(
            f"[device] {asked} was asked for, and torch {torch.__version__} has none here: {has}; install a "
            f"torch built for it with its driver, or use 'cpu'"
        )
    count = torch.accelerator.device_count()
    if index and (not index.isdigit() or int(index) >= count):
        raise DeviceError(f"[device] {asked} was asked for; {kind}:0 to {kind}:{count - 1} exist")
    return f"{kind}:{index or _current_index(found)}"


def _current_index(device: torch.device) -> int:
    import torch

    module = torch.get_device_module(device)
    return int(module.current_device()) if hasattr(module, "current_device") else 0


_DEVICE_FILES = (
    "/dev/nvidia[0-9]*",
    "/dev/nvidiactl",
    "/dev/dxg",
    "/dev/kfd",
    "/dev/dri/renderD*",
    "/dev/accel/*",
)
"""Files that the drivers of accelerators create under ``/dev``."""


@overload
def get_device(spec: Literal["cpu"]) -> CpuDevice: ...


@overload
def get_device(spec: Device | str | Any = None) -> Device: ...


def get_device(spec: Device | str | Any = None) -> Device:
    """Return the device that ``spec`` names.

    Parameters
    ----------
    spec : Device, str, torch.device or None
        ``"cpu"``; ``"cuda"``, ``"cuda:1"``, ``"xpu"``, ``"mps"``; ``"sim"`` or ``"sim:512MiB"`` for a new
        simulated accelerator of that capacity; a device as it is. None stands for the
        ``ACCELERA_DEVICE`` setting, else the accelerator if torch has one, else the CPU; torch is
        not loaded where there can be none.

    Raises UnknownNameError for other names, DeviceError when the machine has no such accelerator,
    BackendMissingError for an accelerator where torch is not installed.
    """
    if isinstance(spec, Device):
        return spec
    spec = current().device if spec is None else spec
    if spec is None:
        return _default_device()
    kind, rest = split_name(str(spec))
    return _KINDS[kind](kind, rest)


def split_name(name: str) -> tuple[str, str]:
    """Return the kind of device that ``name`` starts with, and what follows its colon.

    Raises UnknownNameError for other names; whether the machine has such a device is not looked at.
    """
    kind, _, rest = name.strip().lower().partition(":")
    if kind not in _KINDS:
        raise UnknownNameError.among("device", name, _KINDS)
    return kind, rest


@functools.cache
def _cpu(kind: str, rest: str) -> Device:
    """Return the process's one CPU, by whatever index torch gives it."""
    if rest not in ("", "0"):
        raise DeviceError(f"[device] {kind}:{rest}: all processors are one device; ask for 'cpu'")
    return _cpu_device()


@functools.cache
def _cpu_device() -> Device:
    return CpuDevice()


def _simulated(kind: str, rest: str) -> Device:
    return SimulatedDevice(rest or "64MiB", name=kind)


def _accelerator(kind: str, rest: str) -> Device:
    """Return torch's device, one object for each index."""
    return _of_torch(checked_name(kind, rest))


@functools.cache
def _of_torch(name: str) -> Device:
    from accelera.devices.torch_device import TorchDevice

    return TorchDevice(name)


_KINDS: dict[str, Callable[[str, str], Device]] = {
    "cpu": _cpu,
    "sim": _simulated,
    "cuda": _accelerator,
    "xpu": _accelerator,
    "mps": _accelerator,
}


def _default_device() -> Device:
    if not _may_have_accelerator():
        return _cpu_device()
    found = present_accelerator()
    return _cpu_device() if found is None or found.type not in _KINDS else _accelerator(found.type, "")


def _may_have_accelerator() -> bool:
    """Return whether torch may find an accelerator: it is loaded, or installed with a driver present."""
    if "torch" in sys.modules:
        return True
    if sys.platform.startswith("linux") and not any(map(glob.glob, _DEVICE_FILES)):
        return False
    return is_there("torch")
