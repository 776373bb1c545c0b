"""NVIDIA's management library through pynvml: asked once, and never again where it fails."""

from __future__ import annotations

import functools
import logging
from typing import Any, NamedTuple

from accelera.settings import gpus_in_bus_order, visible_gpus

_LOGGER = logging.getLogger("accelera.execution")


class NvmlDevice(NamedTuple):
    """One GPU as the library knows it."""

    name: str
    memory_bytes: int
    handle: Any
    uuid: str = ""


class NvmlLoad(NamedTuple):
    """How busy a GPU is, in shares from 0 to 1."""

    utilization: float
    memory_pressure: float


@functools.cache
def nvml_devices() -> tuple[NvmlDevice, ...]:
    """Return the GPUs that this process may use, as CUDA numbers them; parts of a card where it is divided.

    None without the library, its driver, or a GPU.
    """
    try:
        import pynvml

        pynvml.nvmlInit()
        cards = [
            _described(pynvml, pynvml.nvmlDeviceGetHandleByIndex(index))
            for index in range(pynvml.nvmlDeviceGetCount())
        ]
        return tuple(_visible(_numbered(pynvml, cards), _instances(pynvml, cards), visible_gpus()))
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


def _described(pynvml: Any, handle: Any) -> NvmlDevice:
    return NvmlDevice(
        _text(pynvml.nvmlDeviceGetName(handle)),
        pynvml.nvmlDeviceGetMemoryInfo(handle).total,
        handle,
        _text(pynvml.nvmlDeviceGetUUID(handle)),
    )


def _numbered(pynvml: Any, cards: list[NvmlDevice]) -> list[NvmlDevice]:
    """Return cards in CUDA's order: unlike ones by speed, unless ``CUDA_DEVICE_ORDER`` says by place.

    CUDA does not say what it takes for speed; the compute capability, then the memory, come close.
    """
    if gpus_in_bus_order() or len({card.name for card in cards}) < 2:
        return cards
    return sorted(
        cards,
        key=lambda card: (pynvml.nvmlDeviceGetCudaComputeCapability(card.handle), card.memory_bytes),
        reverse=True,
    )


def _instances(pynvml: Any, cards: list[NvmlDevice]) -> list[NvmlDevice]:
    """Return the parts (MIG instances) into which cards are divided."""
    found = []
    for card in cards:
        try:
            if not pynvml.nvmlDeviceGetMigMode(card.handle)[0]:
                continue
            most = pynvml.nvmlDeviceGetMaxMigDeviceCount(card.handle)
        except Exception:
            continue  # a card that cannot be divided says so by an error, and old libraries do not ask
        for index in range(most):
            try:
                handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(card.handle, index)
            except Exception:
                continue  # no instance of that number
            found.append(_described(pynvml, handle))
    return found


def _visible(cards: list[NvmlDevice], instances: list[NvmlDevice], asked: str | None) -> list[NvmlDevice]:
    """Return the devices that ``CUDA_VISIBLE_DEVICES`` names, in its order; all where it is unset.

    Where a card is divided CUDA sees the first instance of all and no whole card.
    """
    counted = instances[:1] or cards
    if asked is None:
        return counted
    found = []
    for word in filter(None, (each.strip() for each in asked.split(","))):
        matching = [each for each in (*instances, *counted) if _is_named(each, word)]
        if word.isdigit() and int(word) < len(counted):
            matching = [counted[int(word)]]
        if not matching:
            break
        found.append(matching[0])
    return found


def _is_named(device: NvmlDevice, word: str) -> bool:
    return word.startswith(("GPU-", "MIG-")) and device.uuid.startswith(word)


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name
