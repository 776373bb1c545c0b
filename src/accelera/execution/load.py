"""How busy the machine is (seed 002)."""

from __future__ import annotations

import logging
import sys
import time
from dataclasses import dataclass
from typing import final

from accelera.execution.capabilities import HardwareCapabilities
from accelera.execution.probing.host import ProcessorMeter, memory_pressure
from accelera.execution.probing.nvml import NvmlLoad, nvml_load
from accelera.execution.probing.refreshed import Refreshed

_LOGGER = logging.getLogger("accelera.execution")

AGE_S, LONGEST_S = 0.25, 2.0
"""A reading serves so long; an older one is given while the next is on its way, but never one so old."""

_SHARES = (
    "cpu_utilization",
    "gpu_utilization",
    "memory_pressure",
    "gpu_memory_pressure",
    "cpu_taken_by_others",
)


@final
@dataclass(frozen=True, slots=True)
class SystemLoad:
    """Load of the machine, in shares from 0 to 1.

    Raises
    ------
    ValueError
        When a share is outside 0 … 1: 81 % is 0.81.
    """

    cpu_utilization: float = 0.0
    """Of all processors' time lately, the share in use, by whomever."""
    gpu_utilization: float = 0.0
    """Of the first accelerator's time lately, the share in use; 0 where nobody can tell."""
    memory_pressure: float = 0.0
    """Of the RAM that this process may use, the share taken; limits of control groups count."""
    gpu_memory_pressure: float = 0.0
    """Of the first accelerator's memory, the share taken; 0 where nobody can tell."""
    taken_at: float = 0.0
    """When it was read, in seconds as ``time.monotonic`` tells them."""
    cpu_taken_by_others: float = 0.0
    """Of all processors' time lately, the share that other processes used."""

    def __post_init__(self) -> None:
        for name in _SHARES:
            share = getattr(self, name)
            if not 0 <= share <= 1:
                raise ValueError(f"[SystemLoad] {name}={share}: a share from 0.0 to 1.0; 81 % is 0.81")

    @staticmethod
    def current() -> SystemLoad:
        """Return the load as it was at most a quarter of a second ago, or when last asked, if that is near.

        A reading that is there costs less than a microsecond; a new one is made by a thread of its own.
        """
        return _CURRENT()


_METER = ProcessorMeter()


def _read() -> SystemLoad:
    busy, others = _METER.read()
    gpu = nvml_load() if _has_gpu() else None
    gpu = gpu or _known_to_torch() or NvmlLoad(0.0, 0.0)
    return SystemLoad(
        cpu_utilization=_share(busy),
        gpu_utilization=_share(gpu.utilization),
        memory_pressure=memory_pressure(),
        gpu_memory_pressure=_share(gpu.memory_pressure),
        taken_at=time.monotonic(),
        cpu_taken_by_others=_share(others),
    )


def _share(read: float) -> float:
    """Return what a driver or the system told, held within 0 … 1."""
    return min(1.0, max(0.0, read))


def _has_gpu() -> bool:
    return HardwareCapabilities.detect().gpu_available


def _known_to_torch() -> NvmlLoad | None:
    """Return the pressure on the memory of the current CUDA device, unless that would start CUDA.

    None also where a device that is broken does not say, or torch is only being loaded.
    """
    torch = sys.modules.get("torch")
    try:
        if torch is None or not (torch.cuda.is_available() and torch.cuda.is_initialized()):
            return None
        free_bytes, total_bytes = torch.cuda.mem_get_info()
    except (RuntimeError, AttributeError) as error:
        _LOGGER.debug("torch does not say how full the GPU is: %s", error)
        return None
    return NvmlLoad(0.0, 1 - free_bytes / max(total_bytes, 1))


_CURRENT = Refreshed(_read, AGE_S, LONGEST_S)
