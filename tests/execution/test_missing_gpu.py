"""Every strategy reports a GPU that was given and cannot be used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from accelera.execution import ExecutionStrategy, StrategyManager

STRATEGIES = [
    ExecutionStrategy.GpuOnly,
    ExecutionStrategy.Hybrid(40, 60),
    ExecutionStrategy.Hybrid(),
    ExecutionStrategy.Auto,
]


class Gpu:
    name = "gpu"

    def __init__(self, available: bool) -> None:
        self.available = available

    def execute_batch(self, tasks: Sequence[Any], fn: Callable[[Any], Any]) -> list[Any]:
        if not self.available:
            raise RuntimeError("CUDA error: device unavailable")
        return [fn(task) for task in tasks]

    def is_available(self) -> bool:
        return self.available

    def memory_available(self) -> int:
        return 8 << 30


def work(task: int) -> int:
    return sum(range(500)) + task


@pytest.mark.parametrize("count", [3, 200])
@pytest.mark.parametrize("learn", [False, True])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_a_gpu_that_cannot_be_used(strategy: ExecutionStrategy, learn: bool, count: int) -> None:
    manager = StrategyManager(None, Gpu(available=False), strategy, learn=learn)
    for _ in range(2):
        result = manager.execute(range(count), work)
        assert result.outputs == [work(task) for task in range(count)]
        assert result.fallback_occurred or any("is_available" in str(each) for each in result.errors)


@pytest.mark.parametrize("strategy", [*STRATEGIES, ExecutionStrategy.CpuOnly], ids=str)
def test_a_gpu_that_works_is_no_error(strategy: ExecutionStrategy) -> None:
    result = StrategyManager(None, Gpu(available=True), strategy, learn=False).execute(range(60), work)
    assert not result.errors


def test_nothing_is_reported_where_no_gpu_was_wanted() -> None:
    missing_gpu = Gpu(available=False)
    assert not StrategyManager(None, missing_gpu, ExecutionStrategy.CpuOnly).execute(range(60), work).errors
    assert not StrategyManager().execute(range(60), work).errors
    assert not StrategyManager(None, missing_gpu).execute([], work).errors
