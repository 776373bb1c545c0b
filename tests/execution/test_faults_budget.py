"""What is too large for the GPU and for the budget never runs on the CPU, whichever side is quicker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from accelera.errors import TaskTooLargeError
from accelera.execution import ExecutionStrategy, StrategyManager
from accelera.testing import FakeGpu
from accelera.testing._internal import BridgeGpu, out_of_memory
from tests.execution.stand_ins import blanked


def test_a_large_task_is_refused_however_often_it_is_tried() -> None:
    for _ in range(30):
        manager = StrategyManager(None, FakeGpu(max_batch=0), ExecutionStrategy.GpuOnly, budget="1MiB")
        result = manager.execute([np.zeros(10), np.zeros(10**6)], np.sum, on_error="collect")
        assert blanked(result.outputs) == [0.0, None]
        assert type(result.failures[0].error) is TaskTooLargeError


class Filling(BridgeGpu):
    """A GPU on which outputs stay until a micro-batch is over: with ``capacity`` of them it is full."""

    name = "filling"

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity, self.taken = capacity, 0

    def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> list[Any]:
        self.taken = 0
        return super().execute_batch(tasks, process_fn)

    def take(self, task: Any) -> Any:
        if self.taken == self.capacity:
            raise out_of_memory()
        self.taken += 1
        return task


@pytest.mark.parametrize("capacity", [1, 5, 9, 10])
@pytest.mark.parametrize("budget", [None, "1KiB"])
def test_what_does_not_fit_beside_others_is_tried_alone(capacity: int, budget: str | None) -> None:
    gpu = Filling(capacity)
    manager = StrategyManager(None, gpu, ExecutionStrategy.GpuOnly, learn=False, budget=budget)
    result = manager.execute([np.full(10_000, number) for number in range(10)], gpu.take)
    assert [output[0] for output in result.outputs] == list(range(10))
    assert not result.fallback_occurred
    assert result.per_device["filling"].tasks == 10
    assert (result.oom_splits > 0) is (capacity < 10)
