"""What a batch takes besides its tasks and outputs."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from accelera.execution import ExecutionStrategy, SimulatedExecutor, StrategyManager, ThreadsExecutor
from accelera.execution.tasks.balance import BackupTasks
from accelera.execution.tasks.queue import DeviceKind

COUNT = 200_000
TASK_BYTES = 32
"""The most bytes that may be kept for a task."""
STREAM_BYTES = 400_000
"""What a stream may take, however long it is: its window, and the pieces that tell how fast a device is."""

STRATEGIES = {
    "cpu": ExecutionStrategy.CpuOnly,
    "gpu": ExecutionStrategy.GpuOnly,
    "hybrid": ExecutionStrategy.Hybrid(),
    "shares": ExecutionStrategy.Hybrid(50, 50),
}


def manager_of(strategy: str) -> StrategyManager:
    """Return a manager whose GPU holds 1024 tasks at once."""
    gpu = SimulatedExecutor("1MiB", memory_per_task="1KiB")
    manager = StrategyManager(ThreadsExecutor(2), gpu, STRATEGIES[strategy], learn=False)
    manager.execute(range(5000), nothing)
    return manager


def nothing(task: int) -> None:
    """Return what takes no memory."""


def peak_bytes(run: Callable[[], object]) -> int:
    """Return the most bytes that were allocated at any time of ``run``, beyond the outputs it returns."""
    gc.collect()
    tracemalloc.start()
    try:
        outputs = run()
        return tracemalloc.get_traced_memory()[1] - sys.getsizeof(outputs)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("rerun", ["on_failure", "freely"])
def test_a_task_costs_few_bytes(strategy: str, rerun: Any) -> None:
    """Goal 12, with tasks that are made as they are needed."""
    manager = manager_of(strategy)
    assert (
        peak_bytes(lambda: manager.execute(range(COUNT), nothing, rerun=rerun).outputs) <= TASK_BYTES * COUNT
    )


@pytest.mark.parametrize("ordered", [True, False])
def test_a_long_stream_takes_what_its_window_does(ordered: bool) -> None:
    """Goal 12, at lengths that tests can wait for."""
    manager = StrategyManager(ThreadsExecutor(2))

    def run(count: int) -> int:
        return sum(1 for _ in manager.stream(iter(range(count)), nothing, ordered=ordered, window=256))

    run(1000)
    assert peak_bytes(lambda: run(60_000)) <= STREAM_BYTES


def test_pieces_that_are_through_are_not_kept_to_be_taken_over() -> None:
    late = BackupTasks()
    for start in range(0, 1000, 4):
        late.taken(DeviceKind.CPU, start, start + 4)
        late.done(start, start + 1)
        late.done(start + 1, start + 4)
    assert len(late) == 0
    late.taken(DeviceKind.CPU, 1000, 1004)
    late.done(1000, 1002)
    assert late.take(DeviceKind.GPU, 9, lambda index: False) == (1002, 1004)
