"""What the machine has (seed 002)."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import final

from accelera.execution.cores import usable_cores
from accelera.execution.probing.accelerators import Accelerator, accelerators
from accelera.execution.probing.processor import physical_cores, simd_support
from accelera.memory import host_memory


@final
@dataclass(frozen=True, slots=True)
class HardwareCapabilities:
    """Processors, memory and GPUs of the machine; sizes in bytes.

    Raises
    ------
    ValueError
        When there is no core, or a size is negative.
    """

    cpu_cores: int
    """Logical cores that this process may use: affinity and quotas of control groups considered."""
    gpu_available: bool = False
    """Whether there is an accelerator."""
    gpu_memory_bytes: int = 0
    """Memory of the first accelerator, in bytes."""
    cpu_simd_support: tuple[str, ...] = ()
    """Vector instructions of the processor, such as ``"avx2"``, weakest first."""
    system_memory_bytes: int = 0
    """RAM that is built in, in bytes."""
    physical_cores: int = 0
    """Cores under the logical ones; 0: not known."""
    memory_limit_bytes: int = 0
    """The most RAM this process may use: the smallest limit of its control groups, else all of it."""
    accelerators: tuple[Accelerator, ...] = ()
    """Every accelerator, with its name and its memory in bytes."""

    def __post_init__(self) -> None:
        sizes = self.gpu_memory_bytes, self.system_memory_bytes, self.physical_cores, self.memory_limit_bytes
        if self.cpu_cores < 1 or min(sizes) < 0:
            raise ValueError(
                f"[HardwareCapabilities] cpu_cores={self.cpu_cores}, sizes {sizes}: at least one core, and no"
                f" size below 0; detect() tells what this machine has"
            )

    @staticmethod
    def detect() -> HardwareCapabilities:
        """Return what this machine has; found once, in milliseconds, and remembered."""
        return _detected()


@functools.cache
def _detected() -> HardwareCapabilities:
    memory, found = host_memory(), accelerators()
    return HardwareCapabilities(
        cpu_cores=usable_cores(),
        gpu_available=bool(found),
        gpu_memory_bytes=found[0].memory_bytes if found else 0,
        cpu_simd_support=simd_support(),
        system_memory_bytes=memory.total_bytes,
        physical_cores=physical_cores(),
        memory_limit_bytes=memory.limit_bytes,
        accelerators=found,
    )
