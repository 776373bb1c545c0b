"""Which accelerators there are, found without loading torch where there can be none."""

from __future__ import annotations

import os
import sys
from typing import Any, NamedTuple

from accelera.execution.probing.nvml import nvml_devices
from accelera.extras import is_there

_DRIVERS = (
    "/dev/nvidiactl",
    "/dev/dxg",
    "/dev/kfd",
    "/dev/accel",
    "C:\\Windows\\System32\\nvcuda.dll",
)
"""Files that a driver brings along: NVIDIA, Windows' subsystem for Linux, ROCm, Intel; NVIDIA on Windows."""


class Accelerator(NamedTuple):
    """One device that computes beside the CPU."""

    name: str
    """As its maker calls it."""
    memory_bytes: int
    """Bytes of its own memory; on devices that share the RAM, what they may use of it."""


def accelerators(drivers: tuple[str, ...] = _DRIVERS) -> tuple[Accelerator, ...]:
    """Return what there is.

    Torch is asked when it has begun to use a GPU. Otherwise NVML is, which is quick: asking torch begins its
    use of CUDA, which takes memory and time, and no child process that is forked later could use CUDA then.
    Torch is loaded only where a driver is there and NVML has no answer.
    """
    torch = sys.modules.get("torch")
    if torch is not None and (_uses_cuda(torch) or torch.version.cuda is None):
        return _known_to_torch(torch)
    if not any(os.path.exists(path) for path in drivers):
        return () if torch is None else _known_to_torch(torch)
    found = tuple(Accelerator(device.name, device.memory_bytes) for device in nvml_devices())
    return found or _known_to_torch(_loaded_torch())


def _uses_cuda(torch: Any) -> bool:
    return bool(torch.cuda.is_initialized())


def _loaded_torch() -> Any:
    """Return the module; None where it is not installed."""
    if not is_there("torch"):
        return None
    import torch

    return torch


def _known_to_torch(torch: Any) -> tuple[Accelerator, ...]:
    if torch is None or not torch.accelerator.is_available():
        return ()
    kind = torch.accelerator.current_accelerator().type
    module = torch.get_device_module(kind)
    count = torch.accelerator.device_count()
    return tuple(_described(module, kind, index) for index in range(count))


def _described(module: Any, kind: str, index: int) -> Accelerator:
    if hasattr(module, "get_device_properties"):
        said = module.get_device_properties(index)
        return Accelerator(said.name, said.total_memory)
    return Accelerator(kind, getattr(module, "recommended_max_memory", int)())
