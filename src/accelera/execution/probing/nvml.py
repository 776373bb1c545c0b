"""NVIDIA's management library through pynvml: asked once, and never again where it fails."""

from __future__ import annotations

import functools
import logging
from typing import Any, NamedTuple

from accelera.settings import visible_gpus

_LOGGER = logging.getLogger("accelera.execution")


class NvmlDevice(NamedTuple):
    """One GPU as the library knows it."""

    name: str
    memory_bytes: int
    handle: Any


class NvmlLoad(NamedTuple):
    """How busy a GPU is, in shares from 0 to 1."""

    utilization: float
    memory_pressure: float


@functools.cache
def nvml_devices() -> tuple[NvmlDevice, ...]:
    """Return the GPUs that this process may use; none without the library, its driver, or a GPU."""
    try:
        import pynvml

        pynvml.nvmlInit()
        every = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        named = [(pynvml.nvmlDeviceGetUUID(handle), handle) for handle in every]
        return tuple(
            NvmlDevice(
                _text(pynvml.nvmlDeviceGetName(handle)), pynvml.nvmlDeviceGetMemoryInfo(handle).total, handle
            )
            for handle in _visible([(_text(uuid), handle) for uuid, handle in named], visible_gpus())
        )
    except Exception as error:
        _LOGGER.debug("NVML is of no use here: %s", error)
        return ()


def nvml_load() -> NvmlLoad | None:
    """Return how busy the first GPU is; None where nobody can tell."""
    devices = nvml_devices()
    if not devices:
        return None
    try:
        import pynvml

        memory = pynvml.nvmlDeviceGetMemoryInfo(devices[0].handle)
    except Exception as error:
        _LOGGER.debug("NVML does not say how full the GPU is: %s", error)
        return None
    return NvmlLoad(_utilization(pynvml, devices[0].handle), memory.used / max(memory.total, 1))


def _utilization(pynvml: Any, handle: Any) -> float:
    try:
        return float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
    except Exception as error:
        _LOGGER.debug("NVML does not say how busy the GPU is: %s", error)
        return 0.0


def _visible(devices: list[tuple[str, Any]], asked: str | None) -> list[Any]:
    """Return the devices that ``CUDA_VISIBLE_DEVICES`` names, in its order; all where it is unset."""
    if asked is None:
        return [handle for _, handle in devices]
    found = []
    for word in filter(None, (each.strip() for each in asked.split(","))):
        matching = [handle for uuid, handle in devices if word.startswith("GPU-") and uuid.startswith(word)]
        if word.isdigit() and int(word) < len(devices):
            matching = [devices[int(word)][1]]
        if not matching:
            break
        found.append(matching[0])
    return found


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
