"""Decision tree of seed 002: the strategy while nothing has been measured.

no GPU                                      → CpuOnly
fewer than 10 tasks                         → CpuOnly
more than 80 % of the GPU's memory in use   → Hybrid(60, 40)
at least 50 tasks, more than 70 % parallel  → GpuOnly
otherwise                                   → Hybrid(70, 30)
"""

from __future__ import annotations

from typing import NamedTuple

from accelera.execution.arguments import WorkloadProfile
from accelera.execution.hardware.capabilities import HardwareCapabilities
from accelera.execution.hardware.load import SystemLoad
from accelera.execution.strategy.strategy import ExecutionStrategy

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
    """Return what the tree of seed 002 says; a pure function of its arguments."""
    return rule_for(profile, hardware, load).strategy


def rule_for(profile: WorkloadProfile, hardware: HardwareCapabilities, load: SystemLoad) -> SelectionRule:
    """Return the leaf of the tree, with the reason in words."""
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
