"""Seed 002, the strategy executor: its API, its tree, its fallbacks and what it logs, section by section."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from accelera import (
    CpuExecutor,
    ExecutionStrategy,
    GpuExecutor,
    HardwareCapabilities,
    StrategyManager,
    SystemLoad,
    WorkloadProfile,
)


class MyCpuBridge:
    """The document's bridge: a thread pool of its own."""

    def __init__(self) -> None:
        self.ran: list[int] = []

    def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> list[Any]:
        self.ran += tasks
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(process_fn, tasks))


class MyGpuBridge:
    """The document's other bridge; fails as it is told to."""

    def __init__(self, error: str = "") -> None:
        self.error = error
        self.ran: list[int] = []

    def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> list[Any]:
        if self.error:
            raise RuntimeError(self.error)
        self.ran += tasks
        return [process_fn(task) for task in tasks]

    def is_available(self) -> bool:
        return True

    def memory_available(self) -> int:
        return 8 * 1024 * 1024 * 1024


def process_task(task: int) -> int:
    return task + 1


TASKS = list(range(100))
OUTPUTS = list(range(1, 101))


def test_bridges_are_what_the_protocols_ask_for() -> None:
    assert isinstance(MyCpuBridge(), CpuExecutor)
    assert isinstance(MyGpuBridge(), GpuExecutor)


def test_auto_selection() -> None:
    cpu, gpu = MyCpuBridge(), MyGpuBridge()
    result = StrategyManager.cpu_only(cpu).execute(TASKS, process_task)
    assert (result.outputs, result.strategy_used) == (OUTPUTS, ExecutionStrategy.CpuOnly)
    manager = StrategyManager.new(cpu, gpu)
    assert manager.execute(TASKS, process_task).outputs == OUTPUTS
    assert manager.execute(TASKS[:9], process_task).strategy_used == ExecutionStrategy.CpuOnly


def test_hybrid_execution_splits_by_percentages_and_keeps_order() -> None:
    cpu, gpu = MyCpuBridge(), MyGpuBridge()
    strategy = ExecutionStrategy.Hybrid(gpu_allocation=70, cpu_allocation=30)
    result = StrategyManager.with_strategy(cpu, gpu, strategy).execute(TASKS, process_task)
    assert result.outputs == OUTPUTS
    assert (len(gpu.ran), len(cpu.ran)) == (70, 30)


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 49, 50, 51])
@pytest.mark.parametrize("pressure", [0.0, 0.8, 0.81, 1.0])
@pytest.mark.parametrize("parallel", [0.0, 0.7, 0.71, 1.0])
@pytest.mark.parametrize("gpu", [False, True])
def test_the_decision_tree(count: int, pressure: float, parallel: float, gpu: bool) -> None:
    if not gpu or count < 10:
        expected = ExecutionStrategy.CpuOnly
    elif pressure > 0.8:
        expected = ExecutionStrategy.Hybrid(60, 40)
    elif count >= 50 and parallel > 0.7:
        expected = ExecutionStrategy.GpuOnly
    else:
        expected = ExecutionStrategy.Hybrid(70, 30)
    profile = WorkloadProfile(task_count=count, memory_per_task=0, complexity=0.5, parallelization=parallel)
    hardware = HardwareCapabilities(cpu_cores=8, gpu_available=gpu)
    load = SystemLoad(gpu_memory_pressure=pressure)
    assert StrategyManager.select_strategy(profile, hardware, load) == expected


@pytest.mark.parametrize("error", ["CUDA out of memory", "CUDA driver error: device lost"])
@pytest.mark.parametrize("strategy", [ExecutionStrategy.GpuOnly, ExecutionStrategy.Hybrid(70, 30)])
@pytest.mark.parametrize("fallback", ["unfinished", "all"])
def test_graceful_fallback(error: str, strategy: ExecutionStrategy, fallback: Any) -> None:
    cpu = MyCpuBridge()
    manager = StrategyManager.with_strategy(cpu, MyGpuBridge(error), strategy)
    result = manager.execute(TASKS, process_task, fallback=fallback)
    assert result.outputs == OUTPUTS
    assert result.fallback_occurred
    assert error in str(result.errors[0])
    assert result.execution_time > 0
    assert set(cpu.ran) == set(TASKS)


def test_what_was_done_before_a_failure_is_kept() -> None:
    class Tiring(MyGpuBridge):
        def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> list[Any]:
            if len(self.ran) >= 40 or len(tasks) > 40:
                raise RuntimeError("CUDA out of memory")
            return super().execute_batch(tasks, process_fn)

    cpu, gpu = MyCpuBridge(), Tiring()
    result = StrategyManager.with_strategy(cpu, gpu, ExecutionStrategy.GpuOnly).execute(TASKS, process_task)
    assert result.outputs == OUTPUTS
    assert sorted(cpu.ran + gpu.ran) == TASKS


def test_a_users_error_is_no_failure_of_the_gpu() -> None:
    cpu, gpu = MyCpuBridge(), MyGpuBridge()
    manager = StrategyManager.with_strategy(cpu, gpu, ExecutionStrategy.GpuOnly)
    with pytest.raises(ZeroDivisionError):
        manager.execute(TASKS, lambda task: 1 // task)
    assert cpu.ran == []


def test_the_log_is_the_documents(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "accelera"):
        StrategyManager.cpu_only(MyCpuBridge()).execute(TASKS[:5], process_task)
    log = "\n".join(f"{record.levelname} {record.getMessage()}" for record in caplog.records)
    for line in (
        r"INFO Hardware detection: \d+ CPU cores, GPU available: (true|false)",
        r"DEBUG Small workload detected, CPU-only will be faster",
        r"INFO Executing 5 tasks with strategy: CpuOnly",
        r"INFO Execution completed in \d+\.\dms \(fallback: false\)",
    ):
        assert re.search(f"^{line}$", log, re.MULTILINE), log
