"""What a GPU's executor itself raises, and tasks that are too large by themselves: whose failure it is."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from accelera.errors import UnknownOutcomeError
from accelera.execution import ExecutionStrategy, SimulatedExecutor, StrategyManager, ThreadsExecutor
from accelera.execution.arguments import Fallback
from accelera.testing._internal import out_of_memory


class Bridge:
    """What bridges to a GPU in the manner of the seed have in common."""

    def __init__(self) -> None:
        self.calls = self.done = 0

    def is_available(self) -> bool:
        return True

    def memory_available(self) -> int:
        return 1 << 30


class Raises(Bridge):
    """Its own code raises, without calling the user's function."""

    def __init__(self, error: Callable[[], Exception]) -> None:
        super().__init__()
        self._error = error

    def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> list[Any]:
        self.calls += 1
        raise self._error()


ANY_ERROR = (AssertionError, MemoryError, lambda: OSError("device lost"), lambda: KeyError("handle"))


@pytest.mark.parametrize("error", ANY_ERROR)
@pytest.mark.parametrize("strategy", [ExecutionStrategy.GpuOnly, ExecutionStrategy.Hybrid(70, 30)])
@pytest.mark.parametrize("fallback", ["unfinished", "all"])
def test_what_an_executor_itself_raises_is_no_task_s_failure(
    error: Callable[[], Exception], strategy: ExecutionStrategy, fallback: Fallback
) -> None:
    gpu = Raises(error)
    manager = StrategyManager(ThreadsExecutor(2), gpu, strategy, learn=False)
    result = manager.execute(range(1000), operator.neg, fallback=fallback, on_error="collect")
    assert result.outputs == [-task for task in range(1000)]
    assert (result.fallback_occurred, result.failures) == (True, ())
    assert 1 <= gpu.calls <= 3
    assert len(result.errors) <= 3


def test_what_an_executor_itself_raises_is_raised_where_nothing_may_fall_back() -> None:
    manager = StrategyManager(None, Raises(lambda: OSError("device lost")), ExecutionStrategy.GpuOnly)
    with pytest.raises(OSError, match="device lost"):
        manager.execute(range(9), abs, fallback="never", on_error="collect")
    result = manager.execute(range(1), abs, rerun="never", on_error="collect")
    assert [type(failure.error) for failure in result.failures] == [UnknownOutcomeError]


def test_one_task_that_an_executor_cannot_take_is_found_and_the_gpu_goes_on() -> None:
    class Stacking(Bridge):
        def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> list[Any]:
            np.stack([np.zeros(2), *tasks])
            self.done += len(tasks)
            return [process_fn(task) for task in tasks]

    gpu = Stacking()
    manager = StrategyManager(ThreadsExecutor(2), gpu, ExecutionStrategy.GpuOnly, learn=False)
    tasks = [np.ones(3 if index == 40 else 2) for index in range(100)]
    assert manager.execute(tasks, np.sum).outputs == [3 if index == 40 else 2 for index in range(100)]
    assert gpu.done == 99
    assert manager.execute(tasks[:40], np.sum).per_device["gpu"].tasks == 40


@pytest.mark.parametrize("odd", [0, 37, 50, 63, 99])
def test_one_task_too_large_says_nothing_of_how_many_fit(odd: int) -> None:
    class Picky(Bridge):
        def execute_batch(self, tasks: Sequence[int], process_fn: Callable[[Any], Any]) -> list[Any]:
            self.calls += 1
            if odd in tasks:
                raise out_of_memory()
            return [process_fn(task) for task in tasks]

    gpu = Picky()
    manager = StrategyManager(ThreadsExecutor(2), gpu, ExecutionStrategy.GpuOnly, learn=False)
    result = manager.execute(range(100), operator.neg)
    assert result.outputs == [-task for task in range(100)]
    assert {name: share.tasks for name, share in result.per_device.items()} == {"gpu": 99, "cpu": 1}
    gpu.calls, odd = 0, -1
    assert manager.execute(range(100), operator.neg).per_device["gpu"].tasks == 100
    assert gpu.calls <= 100 // 25, "a task that is too large alone leaves no small limit behind"


def test_tasks_too_large_one_after_the_other_are_the_cpus_and_the_next_batch_is_the_gpus() -> None:
    gpu = SimulatedExecutor("64MiB", memory_per_task=lambda mib: mib << 20)
    manager = StrategyManager(ThreadsExecutor(2), gpu, ExecutionStrategy.GpuOnly, learn=False)
    shares = manager.execute(range(1, 80), operator.neg).per_device
    assert {name: share.tasks for name, share in shares.items()} == {"sim": 64, "cpu": 15}
    shares = manager.execute([1] * 60, operator.neg).per_device
    assert {name: share.tasks for name, share in shares.items()} == {"sim": 60}


def test_what_a_gpu_leaves_is_done_by_as_many_threads_as_there_are() -> None:
    both = threading.Barrier(2)

    def waits(task: int) -> int:
        if task in (10, 900):
            both.wait(300)
        return -task

    manager = StrategyManager(
        ThreadsExecutor(2), Raises(lambda: OSError("device lost")), ExecutionStrategy.GpuOnly
    )
    assert manager.execute(range(1000), waits).outputs == [-task for task in range(1000)]
