"""A GPU that fails while it works: what is done again, where, and what is told of it."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from accelera.errors import DeviceError, TaskTooLargeError, UnknownOutcomeError
from accelera.execution import ExecutionStrategy, StrategyManager, ThreadsExecutor, WorkloadProfile
from accelera.execution._internal import Kernel
from accelera.execution.faults.breaker import BreakerState
from accelera.testing import FakeGpu, sticky
from accelera.testing._internal import BridgeGpu, out_of_memory, transient

GPU_ONLY = ExecutionStrategy.GpuOnly


def managed(gpu: Any, strategy: ExecutionStrategy = GPU_ONLY, **options: Any) -> StrategyManager:
    return StrategyManager(ThreadsExecutor(2), gpu, strategy, learn=False, **options)


class Noting:
    """A function that notes where each task ran."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self, task: int) -> int:
        self.seen.append(task)
        return -task


def test_what_fits_is_found_and_remembered() -> None:
    gpu = FakeGpu(max_batch=37)
    manager = managed(gpu)
    result = manager.execute(range(2000), Noting())
    assert result.outputs == [-task for task in range(2000)]
    assert not result.fallback_occurred
    assert result.oom_splits == len(gpu.failed) <= 12 + 4
    assert gpu.emptied == len(gpu.failed)
    failures = len(gpu.failed)
    manager.execute(range(2000), Noting())
    assert len(gpu.failed) == failures, "remembered from batch to batch"
    assert sorted(gpu.calls)[-failures - 3] >= 0.9 * 37


def test_sizes_are_remembered_by_kernel_and_by_size_of_the_task() -> None:
    def function(task: np.ndarray[Any, Any]) -> int:
        return task.nbytes

    calls: list[tuple[int, int]] = []

    class Gpu(BridgeGpu):
        def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> list[Any]:
            calls.append((tasks[0].nbytes, len(tasks)))
            if sum(task.nbytes for task in tasks) > 1 << 16:
                raise out_of_memory()
            return [process_fn(task) for task in tasks]

        def memory_available(self) -> int:
            return 1 << 16

    manager = managed(Gpu())
    small, large = np.zeros(1 << 8, np.uint8), np.zeros(1 << 14, np.uint8)
    for _ in range(2):
        assert manager.execute([small] * 1000, function).outputs == [1 << 8] * 1000
        assert manager.execute([large] * 100, function).outputs == [1 << 14] * 100
    largest = max(count for nbytes, count in calls[-400:] if nbytes == 1 << 8)
    assert largest >= 0.9 * 256, "large tasks do not make small ones go in few"


def test_a_profile_sizes_the_first_piece() -> None:
    gpu = FakeGpu(memory=1000, max_batch=10)
    managed(gpu).execute(range(100), Noting(), WorkloadProfile(100, memory_per_task=100))
    assert (gpu.calls[0], gpu.failed) == (10, [])


def test_what_is_too_large_alone_goes_to_the_cpu_and_the_gpu_goes_on() -> None:
    class Gpu(BridgeGpu):
        name = "picky"

        def __init__(self) -> None:
            super().__init__()
            self.done: list[int] = []

        def execute_batch(self, tasks: Sequence[int], process_fn: Callable[[Any], Any]) -> list[Any]:
            if any(task % 10 == 0 for task in tasks):
                raise out_of_memory()
            self.done += tasks
            return [process_fn(task) for task in tasks]

    gpu = Gpu()
    manager = managed(gpu)
    result = manager.execute(range(200), Noting())
    assert result.outputs == [-task for task in range(200)]
    assert result.fallback_occurred
    assert gpu.done
    assert manager._gpu is not None
    assert manager._gpu.breaker.state is BreakerState.CLOSED


@pytest.mark.parametrize("needs", [100, 1000])
@pytest.mark.parametrize("stated", [False, True])
def test_a_task_that_fits_nowhere_is_refused(needs: int, stated: bool) -> None:
    manager = managed(FakeGpu(max_batch=0), budget=500)
    tasks = [np.zeros(needs if index == 2 else 1, np.uint8) for index in range(5)]
    profile = WorkloadProfile(5, memory_per_task=needs) if stated else None
    result = manager.execute(tasks, np.size, profile, on_error="collect")
    refused = [failure.error for failure in result.failures]
    if needs <= 500:
        assert not refused
        return
    assert {type(error) for error in refused} == {TaskTooLargeError}
    error: Any = next(failure.error for failure in result.failures if failure.index == 2)
    assert (error.index, error.needed_bytes, error.budget_bytes) == (2, 1000, 500)
    assert "task 2 takes 1,000 bytes" in str(error)
    assert "500 bytes" in str(error)
    assert isinstance(error, MemoryError)
    assert isinstance(error.__cause__, RuntimeError)


def test_a_transient_error_is_tried_once_more_on_the_device() -> None:
    gpu, function = FakeGpu(faults={0: transient}, before_fault=1.0), Noting()
    result = managed(gpu).execute(range(10), function)
    assert (gpu.calls, result.retries, result.fallback_occurred) == ([10, 10], 1, False)
    assert result.outputs == [-task for task in range(10)]
    gpu = FakeGpu(faults={0: transient, 1: transient})
    result = managed(gpu).execute(range(10), function)
    assert (gpu.calls, result.fallback_occurred) == ([10, 10], True)
    assert result.outputs == [-task for task in range(10)]
    assert [str(error) for error in result.errors] == [str(transient())]


def test_a_sticky_error_ends_its_use_at_once_and_keeps_what_is_done() -> None:
    gpu, function = FakeGpu(max_batch=10, faults={6: sticky}, before_fault=0.0), Noting()
    manager = managed(gpu, ExecutionStrategy.Hybrid(90, 10))
    result = manager.execute(range(100), function)
    assert result.outputs == [-task for task in range(100)]
    assert manager._gpu is not None
    assert manager._gpu.breaker.state is BreakerState.OPEN
    assert len(gpu.calls) == 7
    assert max(Counter(function.seen).values()) == 1, "nothing that was done is done again"


def test_fallback_all_runs_everything_again() -> None:
    function = Noting()
    gpu = FakeGpu(faults={0: sticky}, before_fault=1.0)
    result = managed(gpu).execute(range(20), function, fallback="all")
    assert result.outputs == [-task for task in range(20)]
    assert set(Counter(function.seen).values()) == {2}
    assert result.fallback_occurred

    seen: list[int] = []
    kernel = Kernel(lambda task: seen.append(task) or 1 // task)

    @kernel.gpu_batch
    def many(tasks: Sequence[int], device: str) -> list[int]:
        return [1 // task for task in tasks]

    result = managed(FakeGpu()).execute([1, 0, 1], kernel, fallback="all", on_error="collect")
    # The batched form may have failed for a reason of its own: the CPU's outcome counts.
    assert (result.failed_indices, result.fallback_occurred, seen) == ((1,), True, [1, 0, 1])


def test_fallback_never_raises_what_the_device_did() -> None:
    with pytest.raises(RuntimeError, match="illegal memory access"):
        managed(FakeGpu(faults={0: sticky})).execute(range(20), abs, fallback="never", on_error="collect")
    gpu = FakeGpu()
    gpu.available = False
    with pytest.raises(DeviceError, match="cannot be used now"):
        managed(gpu).execute(range(20), abs, fallback="never")


def test_a_gpu_that_is_not_there_is_said_to_be_so_where_nothing_may_fall_back() -> None:
    gpu = FakeGpu()
    gpu.available = False
    with pytest.raises(DeviceError, match=r"cannot be used now$"):
        managed(gpu).execute(range(9), abs, fallback="never")


@pytest.mark.parametrize("fault", [transient, sticky, out_of_memory])
def test_what_must_not_run_again_ends_unknown(fault: Callable[[], Exception]) -> None:
    function = Noting()
    gpu = FakeGpu(faults={0: fault}, before_fault=0.5)
    manager = managed(gpu, ExecutionStrategy.Hybrid(50, 50))
    result = manager.execute(range(20), function, rerun="never", on_error="collect")
    assert result.failed_indices == tuple(range(10))
    assert {type(failure.error) for failure in result.failures} == {UnknownOutcomeError}
    assert "task 0 was under way with 9 others" in str(result.failures[0].error)
    assert str(result.failures[0].error.__cause__) == str(fault())
    assert max(Counter(function.seen).values()) == 1
    assert result.outputs[10:] == [-task for task in range(10, 20)]
    with pytest.raises(UnknownOutcomeError):
        managed(FakeGpu(faults={0: fault})).execute(range(20), function, rerun="never")
    with pytest.raises(ValueError, match="the one forbids what the other asks for"):
        manager.execute(range(20), function, rerun="never", fallback="all")


def test_a_form_for_many_that_raises_is_not_begun_again_where_that_is_forbidden() -> None:
    kernel = Kernel(abs)
    seen: list[int] = []

    @kernel.gpu_batch
    def many(tasks: Sequence[int], device: str) -> list[int]:
        seen.extend(tasks)
        raise ValueError("the third is odd")

    result = managed(FakeGpu()).execute(range(8), kernel, rerun="never", on_error="collect")
    assert seen == list(range(8))
    assert {type(failure.error) for failure in result.failures} == {UnknownOutcomeError}


def test_a_users_words_on_the_cpu_are_the_users() -> None:
    def fails(task: int) -> int:
        raise RuntimeError("CUDA out of memory")

    result = managed(None, ExecutionStrategy.CpuOnly).execute(range(3), fails, on_error="collect")
    assert (result.failed_indices, result.fallback_occurred) == ((0, 1, 2), False)
    result = managed(FakeGpu()).execute(range(3), fails, on_error="collect")
    assert result.failed_indices == (0, 1, 2), "the CPU has the last word"


def test_an_unknown_kind_of_device_error_is_found_out() -> None:
    """Errors that are taken for the user's are the device's when the CPU can do the tasks."""

    class StrangeError(Exception):
        pass

    some_done = threading.Event()

    def fault(call: int) -> StrangeError:
        assert call < 100 or some_done.wait(300)
        return StrangeError("0x1F")

    def function(task: int) -> int:
        if task == 20:
            some_done.set()
        return -task

    gpu = FakeGpu(faults=fault, launch_s=2e-3)
    manager = managed(gpu)
    result = manager.execute(range(500), function)
    assert result.outputs == [-task for task in range(500)]
    assert result.fallback_occurred
    assert manager._gpu is not None
    assert manager._gpu.breaker.state is BreakerState.OPEN
    assert len(gpu.calls) < 200, "not one by one to the end"


def test_memory_is_let_go_of_before_it_is_asked_back() -> None:
    held: list[weakref.ref[Any]] = []
    alive: list[bool] = []

    class Block:
        pass

    class Gpu(BridgeGpu):
        name = "leaky"

        def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> list[Any]:
            if len(tasks) > 4:
                block = Block()
                held.append(weakref.ref(block))
                try:
                    raise KeyError("first")
                except KeyError:
                    self.deeper()
            return [process_fn(task) for task in tasks]

        def deeper(self) -> None:
            block = Block()
            held.append(weakref.ref(block))
            raise out_of_memory()

        def empty_cache(self) -> None:
            gc.collect()
            alive.extend(each() is not None for each in held)

    assert managed(Gpu()).execute(range(16), abs).outputs == list(range(16))
    assert alive
    assert not any(alive)


class Answering(BridgeGpu):
    """A GPU whose answers are not those asked for."""

    name = "odd"

    def __init__(self, answer: Callable[[list[Any]], Any]) -> None:
        super().__init__()
        self.answer = answer
        self.calls = 0

    def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> Any:
        self.calls += 1
        return self.answer([process_fn(task) for task in tasks])

    def memory_available(self) -> int:
        raise OSError("the driver does not say")


@pytest.mark.parametrize("answer", [iter, tuple, np.asarray, lambda each: (one for one in each)])
def test_answers_may_come_in_any_collection(answer: Callable[[list[Any]], Any]) -> None:
    gpu = Answering(answer)
    profile = WorkloadProfile(20, memory_per_task=8)
    result = managed(gpu).execute(range(20), abs, profile)
    assert (result.outputs, result.fallback_occurred, gpu.calls) == (list(range(20)), False, 1)


@pytest.mark.parametrize("answer", [lambda each: None, lambda each: each[1:], lambda each: [*each, 0], len])
def test_answers_that_are_none_are_the_devices_fault(answer: Callable[[list[Any]], Any]) -> None:
    result = managed(Answering(answer)).execute(range(20), abs)
    assert result.outputs == list(range(20))
    assert result.fallback_occurred
    assert "must return one output for each" in str(result.errors[0])
    with pytest.raises(DeviceError, match="must return one output for each"):
        StrategyManager.cpu_only(Answering(answer)).execute(range(20), abs)


def test_a_gpu_that_goes_away_in_the_middle() -> None:
    gpu = FakeGpu(max_batch=10)

    def function(task: int) -> int:
        gpu.available = task < 35
        return -task

    result = managed(gpu).execute(range(100), function)
    assert result.outputs == [-task for task in range(100)]
    assert result.fallback_occurred
    assert sum(gpu.calls) - sum(gpu.failed) < 100


@pytest.mark.parametrize("where", ["is_available", "empty_cache", "memory_available"])
def test_questions_that_raise_are_no_answers(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise OSError("the driver does not answer")

    gpu = FakeGpu(max_batch=3)
    monkeypatch.setattr(gpu, where, fails)
    result = managed(gpu).execute(range(20), abs, WorkloadProfile(20, memory_per_task=1))
    assert result.outputs == list(range(20))


def test_the_cpu_begins_while_the_gpu_goes_on() -> None:
    """What is left to the CPU does not wait until the GPU is through."""
    both = threading.Barrier(2)

    class Gpu(BridgeGpu):
        name = "half"

        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def execute_batch(self, tasks: Sequence[int], process_fn: Callable[[Any], Any]) -> list[Any]:
            self.calls += 1
            if 0 in tasks:
                raise out_of_memory()
            if 9 in tasks:
                both.wait(300)
            return [process_fn(task) for task in tasks]

    def function(task: int) -> int:
        if task == 0:
            both.wait(300)
        return task

    manager = managed(Gpu())
    assert manager._gpu is not None
    manager._gpu.size_of(function).ran_out(3)
    assert manager.execute(range(10), function).outputs == list(range(10))
