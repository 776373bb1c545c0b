"""Where work runs: ``ExecutionStrategy.Auto``, ``CpuOnly``, ``GpuOnly`` or ``Hybrid`` (seed 002)."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from numbers import Integral
from typing import ClassVar, TypeGuard, final


class Kind(enum.Enum):
    """What kind of strategy it is."""

    AUTO = "Auto"
    CPU_ONLY = "CpuOnly"
    GPU_ONLY = "GpuOnly"
    HYBRID = "Hybrid"


@final
@dataclass(frozen=True)
class ExecutionStrategy:
    """Place where a batch runs: CPU, GPU, or both.

    Use ``ExecutionStrategy.Auto``, ``.CpuOnly``, ``.GpuOnly`` or ``.Hybrid(gpu_allocation, cpu_allocation)``.

    Raises
    ------
    ValueError
        When only one share of a hybrid is given, one is no whole number from 0 to 100, or they do not add up
        to 100.
    """

    kind: Kind
    gpu_allocation: int | None = None
    """Per cent of the tasks that go to the GPU; None where both pull as fast as they can."""
    cpu_allocation: int | None = None
    """Per cent of the tasks that go to the CPU."""

    Auto: ClassVar[ExecutionStrategy]
    """Decided for every batch of work."""
    CpuOnly: ClassVar[ExecutionStrategy]
    """Everything on the CPU."""
    GpuOnly: ClassVar[ExecutionStrategy]
    """Everything on the GPU; what fails there runs on the CPU."""

    def __post_init__(self) -> None:
        gpu, cpu = self.gpu_allocation, self.cpu_allocation
        if gpu is None and cpu is None:
            return
        if not (_is_per_cent(gpu) and _is_per_cent(cpu) and gpu + cpu == 100):
            raise ValueError(
                f"[execution] Hybrid(gpu_allocation={gpu!r}, cpu_allocation={cpu!r}): shares are whole per"
                f" cent from 0 to 100 that add up to 100; give both, or none to let both sides pull"
            )

    @staticmethod
    def Hybrid(  # noqa: N802
        gpu_allocation: int | None = None, cpu_allocation: int | None = None
    ) -> ExecutionStrategy:
        """Return GPU and CPU together: by fixed shares in per cent, or each pulling as fast as it can."""
        return ExecutionStrategy(Kind.HYBRID, gpu_allocation, cpu_allocation)

    @property
    def uses_gpu(self) -> bool:
        """Whether a GPU takes part."""
        return self.kind in (Kind.GPU_ONLY, Kind.HYBRID)

    def gpu_tasks(self, task_count: int) -> int | None:
        """Return how many of ``task_count`` tasks are the GPU's, to the nearest; None where both pull."""
        if self.kind is Kind.GPU_ONLY:
            return task_count
        if self.kind is Kind.CPU_ONLY:
            return 0
        if self.gpu_allocation is None:
            return None
        return (2 * task_count * self.gpu_allocation + 100) // 200

    def __str__(self) -> str:
        if self.gpu_allocation is None:
            return self.kind.value
        return f"Hybrid({self.gpu_allocation}% GPU, {self.cpu_allocation}% CPU)"


ExecutionStrategy.Auto = ExecutionStrategy(Kind.AUTO)
ExecutionStrategy.CpuOnly = ExecutionStrategy(Kind.CPU_ONLY)
ExecutionStrategy.GpuOnly = ExecutionStrategy(Kind.GPU_ONLY)


def _is_per_cent(share: object) -> TypeGuard[int]:
    return isinstance(share, Integral) and 0 <= int(share) <= 100
