"""Contract of executors as tests: subclass ``ExecutorContract`` and make your executor there.

>>> class TestMyBridge(ExecutorContract):
...     def make_executor(self):
...         return MyBridge()
"""

from __future__ import annotations

import abc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from accelera.execution import CpuExecutor, ExecutionStrategy, GpuExecutor, StrategyManager


def squared(number: int) -> int:
    """Return the square; picklable, as executors in processes need it."""
    return number * number


def unchanged(task: Any) -> Any:
    """Return the task itself."""
    return task


def odd_raises(number: int) -> int:
    """Return an even number; raise for an odd one."""
    if number % 2:
        raise ValueError(f"{number} is odd")
    return number


class ExecutorContract(abc.ABC):
    """Tests that any ``CpuExecutor`` or ``GpuExecutor`` passes; ``make_executor`` is all a subclass gives."""

    @abc.abstractmethod
    def make_executor(self) -> CpuExecutor | GpuExecutor:
        """Return the executor to be tested."""

    @pytest.mark.parametrize("count", [0, 1, 2, 7, 1000])
    def test_outputs_are_in_the_order_of_the_tasks(self, count: int) -> None:
        """One output for each task, also for none."""
        outputs = self.make_executor().execute_batch(list(range(count)), squared)
        assert list(outputs) == [number * number for number in range(count)]

    def test_tasks_stay_as_they_are(self) -> None:
        """The sequence belongs to the caller; a tuple is one as well."""
        executor, tasks = self.make_executor(), [3, 1, 2]
        executor.execute_batch(tasks, squared)
        assert tasks == [3, 1, 2]
        assert list(executor.execute_batch(tuple(tasks), squared)) == [9, 1, 4]

    def test_outputs_may_be_anything(self) -> None:
        """None, arrays, collections and exceptions as values come back as they are."""
        tasks: list[Any] = [None, "text", (1, [2]), {}, np.arange(3), float("inf"), False]
        outputs = list(self.make_executor().execute_batch(tasks, unchanged))
        np.testing.assert_array_equal(outputs.pop(4), tasks.pop(4))
        assert outputs == tasks
        assert [type(output) for output in outputs] == [type(task) for task in tasks]

    def test_what_the_function_raises_arrives(self) -> None:
        """The exception is the function's own, and the executor works on."""
        executor = self.make_executor()
        with pytest.raises(ValueError, match="is odd"):
            executor.execute_batch([0, 1, 2], odd_raises)
        assert list(executor.execute_batch([0, 2], odd_raises)) == [0, 2]

    def test_batches_at_the_same_time_do_not_mix(self) -> None:
        """Several threads may each have a batch carried out."""
        executor = self.make_executor()
        with ThreadPoolExecutor(4) as pool:
            begun = [
                pool.submit(executor.execute_batch, list(range(start, start + 50)), squared)
                for start in range(0, 400, 50)
            ]
            outputs = [output for each in begun for output in each.result()]
        assert outputs == [number * number for number in range(400)]

    def test_a_gpu_says_whether_it_is_there_and_what_is_free(self) -> None:
        """Answers have the right types; an executor for the CPU has none to give."""
        executor = self.make_executor()
        if isinstance(executor, GpuExecutor):
            assert executor.is_available() is True
            assert executor.memory_available() >= 0

    @pytest.mark.parametrize("strategy", [ExecutionStrategy.GpuOnly, ExecutionStrategy.Hybrid()])
    def test_works_in_a_manager(self, strategy: ExecutionStrategy) -> None:
        """Outputs in order, errors by task, nothing twice."""
        executor = self.make_executor()
        if isinstance(executor, GpuExecutor):
            manager = StrategyManager(None, executor, strategy, learn=False)
        else:
            manager = StrategyManager.cpu_only(executor)
        assert manager.execute(range(300), squared).outputs == [number * number for number in range(300)]
        result = manager.execute(range(9), odd_raises, on_error="collect")
        assert result.outputs[::2] == [0, 2, 4, 6, 8]
        assert [*map(id, result.outputs[1::2])] == [*map(id, result.failures)]
        assert result.failed_indices == (1, 3, 5, 7)
        assert not result.fallback_occurred
