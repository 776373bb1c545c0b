"""Execution strategies and their names, the decision that a batch gets one, and the tree of seed 002."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import ClassVar, Final, NamedTuple, TypeGuard, final

from accelera.errors import ArgumentError, UnknownNameError
from accelera.execution.arguments import WorkloadProfile, described
from accelera.execution.hardware.capabilities import HardwareCapabilities
from accelera.execution.hardware.load import SystemLoad
from accelera.execution.strategy.rates import DeviceRates
from accelera.settings import StrategyName, current_value
from accelera.units import format_seconds


class StrategyKind(enum.Enum):
    """Kind of a strategy."""

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

    kind: StrategyKind
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
            raise ArgumentError(
                f"[execution] Hybrid(gpu_allocation={gpu!r}, cpu_allocation={cpu!r}): shares are whole per"
                f" cent from 0 to 100 that add up to 100; give both, or none to let both sides pull"
            )

    @staticmethod
    def Hybrid(  # noqa: N802
        gpu_allocation: int | None = None, cpu_allocation: int | None = None
    ) -> ExecutionStrategy:
        """Return GPU and CPU together: by fixed shares in per cent, or each pulling as fast as it can."""
        return ExecutionStrategy(StrategyKind.HYBRID, gpu_allocation, cpu_allocation)

    @staticmethod
    def named(name: str) -> ExecutionStrategy:
        """Return the strategy called ``"auto"``, ``"cpu"``, ``"gpu"`` or ``"hybrid"``, in any case.

        Raises UnknownNameError when none is called so.
        """
        word = name.strip().lower()
        if word not in _STRATEGIES:
            raise UnknownNameError.among("strategy", word, _STRATEGIES)
        return _STRATEGIES[word]

    @property
    def uses_gpu(self) -> bool:
        """Whether a GPU takes part."""
        return self.kind in (StrategyKind.GPU_ONLY, StrategyKind.HYBRID)

    def gpu_tasks(self, task_count: int) -> int | None:
        """Return how many of ``task_count`` tasks are the GPU's, to the nearest; None where both pull."""
        if self.kind is StrategyKind.GPU_ONLY:
            return task_count
        if self.kind is StrategyKind.CPU_ONLY:
            return 0
        if self.gpu_allocation is None:
            return None
        return (2 * task_count * self.gpu_allocation + 100) // 200

    def __str__(self) -> str:
        if self.gpu_allocation is None:
            return self.kind.value
        return f"Hybrid({self.gpu_allocation}% GPU, {self.cpu_allocation}% CPU)"


ExecutionStrategy.Auto = ExecutionStrategy(StrategyKind.AUTO)
ExecutionStrategy.CpuOnly = ExecutionStrategy(StrategyKind.CPU_ONLY)
ExecutionStrategy.GpuOnly = ExecutionStrategy(StrategyKind.GPU_ONLY)


def _is_per_cent(share: object) -> TypeGuard[int]:
    return isinstance(share, Integral) and 0 <= int(share) <= 100


@final
@dataclass(frozen=True, slots=True)
class Decision:
    """A strategy, the rule that chose it and what it was compared with."""

    strategy: ExecutionStrategy
    rule: str
    """``"given"``, a leaf of the seed's tree, ``"stream"``, ``"learned rates"``, or, where a batch runs on
    both sides to measure them, ``"gathering samples"`` or ``"sampling anew"``."""
    reasons: tuple[str, ...] = ()
    dynamic: bool = False
    """Whether GPU and CPU pull tasks as fast as they can, whatever the shares say."""
    predicted_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds that each strategy would take, by name; empty while nothing has been measured."""
    samples: Mapping[str, int] = field(default_factory=dict)
    """Measured pieces behind the prediction, by device."""
    pace: DeviceRates | None = None
    """How fast both sides are, where they pull at a pace that is known beforehand."""

    def on_cpu(self) -> Decision:
        """Return the same with everything on the CPU, as when a GPU has failed."""
        return replace(self, strategy=ExecutionStrategy.CpuOnly, dynamic=False, pace=None)

    def __str__(self) -> str:
        lines = [f"{self.strategy}: {self.rule}", *(f"  {reason}" for reason in self.reasons)]
        lines += [
            f"  {name}: {format_seconds(seconds)} predicted" for name, seconds in self.predicted_s.items()
        ]
        return "\n".join(lines)


NO_GPU = Decision(ExecutionStrategy.CpuOnly, "no GPU", ("the manager was given no GPU",))
_BOTH = Decision(
    ExecutionStrategy.Hybrid(),
    "stream",
    ("how many tasks there will be is not known: CPU and GPU take them as fast as they can",),
    dynamic=True,
)


def stream_decision(strategy: ExecutionStrategy, *, gpu: bool) -> Decision:
    """Return where a stream of a manager with ``strategy`` runs; there is no whole to have shares of."""
    if not gpu:
        return NO_GPU
    if strategy.kind in (StrategyKind.CPU_ONLY, StrategyKind.GPU_ONLY):
        return Decision(strategy, "given", ("the manager was made with it",))
    return _BOTH


SMALL_TASK_COUNT = 10
"""Fewer tasks than this are not worth a GPU's overhead."""
LARGE_TASK_COUNT = 50
"""From this many on a GPU may be given all."""
PRESSURE = 0.8
"""Share of GPU memory in use above which it is spared."""
PARALLEL = 0.7
"""Parallel share above which a GPU may be given all."""

UNDER_PRESSURE = ExecutionStrategy.Hybrid(60, 40)
BALANCED = ExecutionStrategy.Hybrid(70, 30)


class SelectionRule(NamedTuple):
    """One leaf of the tree."""

    name: str
    strategy: ExecutionStrategy
    reason: str


def select_strategy(
    profile: WorkloadProfile, hardware: HardwareCapabilities, load: SystemLoad
) -> ExecutionStrategy:
    """Return what the tree says while nothing has been measured; a pure function of its arguments."""
    return rule_for(profile, hardware, load).strategy


def rule_for(profile: WorkloadProfile, hardware: HardwareCapabilities, load: SystemLoad) -> SelectionRule:
    """Return the leaf of the tree of seed 002, with the reason in words.

    ::

        no GPU                                      → CpuOnly
        fewer than 10 tasks                         → CpuOnly
        more than 80 % of the GPU's memory in use   → Hybrid(60, 40)
        at least 50 tasks, more than 70 % parallel  → GpuOnly
        otherwise                                   → Hybrid(70, 30)
    """
    count = profile.task_count
    if not hardware.gpu_available:
        return SelectionRule("no GPU", ExecutionStrategy.CpuOnly, "no GPU is available")
    if count < SMALL_TASK_COUNT:
        reason = f"{count} tasks are fewer than {SMALL_TASK_COUNT}: CPU-only will be faster"
        return SelectionRule("small workload", ExecutionStrategy.CpuOnly, reason)
    if load.gpu_memory_pressure > PRESSURE:
        reason = f"{load.gpu_memory_pressure:.0%} of the GPU's memory is in use, more than {PRESSURE:.0%}"
        return SelectionRule("GPU memory pressure", UNDER_PRESSURE, reason)
    if count >= LARGE_TASK_COUNT and profile.parallelization > PARALLEL:
        reason = f"{count} tasks, {profile.parallelization:.0%} parallel: enough for the GPU alone"
        return SelectionRule("large parallel workload", ExecutionStrategy.GpuOnly, reason)
    reason = f"{count} tasks, {profile.parallelization:.0%} parallel: GPU and CPU share them"
    return SelectionRule("shared workload", BALANCED, reason)


_STRATEGIES: Final = {
    "auto": ExecutionStrategy.Auto,
    "cpu": ExecutionStrategy.CpuOnly,
    "gpu": ExecutionStrategy.GpuOnly,
    "hybrid": ExecutionStrategy.Hybrid(),
}


def default_strategy(strategy: ExecutionStrategy | StrategyName | None = None) -> ExecutionStrategy:
    """Return the strategy of a name; None stands for ``ACCELERA_STRATEGY``.

    Raises UnknownNameError when no strategy is called so, TypeError for what is neither.
    """
    return named_strategy(current_value("strategy") if strategy is None else strategy)


def named_strategy(strategy: ExecutionStrategy | StrategyName) -> ExecutionStrategy:
    """Return a strategy, or the one of a name; raises as ``default_strategy`` does."""
    if isinstance(strategy, ExecutionStrategy):
        return strategy
    if not isinstance(strategy, str):
        raise ArgumentError(
            f"[strategy] {described(strategy)} is no strategy: give an ExecutionStrategy, such as"
            f" ExecutionStrategy.Hybrid(70, 30), or one of {', '.join(map(repr, _STRATEGIES))}"
        )
    return ExecutionStrategy.named(strategy)
