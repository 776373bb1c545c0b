"""The decision tree of seed 002, on both sides of every border."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from accelera.execution import ExecutionStrategy, HardwareCapabilities, SystemLoad, WorkloadProfile
from accelera.execution.strategy.strategy import rule_for, select_strategy

COUNTS = (0, 1, 9, 10, 11, 49, 50, 51, 10**6)
PRESSURES = (0.0, 0.7999, 0.8, 0.8001, 1.0)
PARALLEL = (0.0, 0.6999, 0.7, 0.7001, 1.0)


def as_written(count: int, gpu: bool, pressure: float, parallel: float) -> ExecutionStrategy:
    """The tree as the seed draws it, question after question."""
    if not gpu:
        return ExecutionStrategy.CpuOnly
    if count < 10:
        return ExecutionStrategy.CpuOnly
    if pressure > 0.80:
        return ExecutionStrategy.Hybrid(gpu_allocation=60, cpu_allocation=40)
    if count >= 50 and parallel > 0.70:
        return ExecutionStrategy.GpuOnly
    return ExecutionStrategy.Hybrid(gpu_allocation=70, cpu_allocation=30)


@pytest.mark.parametrize("gpu", [False, True])
def test_every_border(gpu: bool) -> None:
    hardware = HardwareCapabilities(cpu_cores=8, gpu_available=gpu)
    for count, pressure, parallel in itertools.product(COUNTS, PRESSURES, PARALLEL):
        profile = WorkloadProfile(count, parallelization=parallel)
        load = SystemLoad(gpu_memory_pressure=pressure)
        expected = as_written(count, gpu, pressure, parallel)
        assert select_strategy(profile, hardware, load) == expected, (count, pressure, parallel)


def test_rules_have_names_and_reasons() -> None:
    gpu = HardwareCapabilities(cpu_cores=8, gpu_available=True)
    rule = rule_for(WorkloadProfile(9), gpu, SystemLoad())
    assert (rule.name, rule.strategy) == ("small workload", ExecutionStrategy.CpuOnly)
    assert "9 tasks are fewer than 10" in rule.reason


@pytest.mark.parametrize(
    ("gpu", "cpu"),
    [(70, None), (None, 30), (70, 40), (-10, 110), (101, -1), (33.3, 66.7), (math.nan, 50), ("70", "30")],
)
def test_shares_that_do_not_add_up(gpu: Any, cpu: Any) -> None:
    with pytest.raises(ValueError, match="add up to 100"):
        ExecutionStrategy.Hybrid(gpu, cpu)


def test_shares_part_tasks_exactly() -> None:
    for count, share in itertools.product(range(101), range(101)):
        tasks = ExecutionStrategy.Hybrid(share, 100 - share).gpu_tasks(count)
        assert tasks is not None
        assert abs(tasks - count * share / 100) <= 0.5
    assert ExecutionStrategy.Hybrid().gpu_tasks(10) is None
