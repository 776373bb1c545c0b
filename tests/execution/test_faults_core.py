"""The core loop where things go wrong around it: dying threads, raising callbacks, odd tasks and outputs."""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from accelera.errors import DeviceError, UnfinishedError
from accelera.execution import CpuExecutor, ExecutionStrategy, Retry, StrategyManager, ThreadsExecutor
from accelera.execution._internal import Kernel
from accelera.execution.tasks.queue import DeviceKind, TaskQueue
from accelera.testing import FakeGpu
from accelera.testing._internal import BridgeCpu
from tests.execution.stand_ins import blanked

STRATEGIES = [
    ExecutionStrategy.CpuOnly,
    ExecutionStrategy.GpuOnly,
    ExecutionStrategy.Hybrid(),
    ExecutionStrategy.Hybrid(50, 50),
]

pytestmark = pytest.mark.parametrize("strategy", STRATEGIES, ids=str)


@pytest.fixture
def gpu() -> FakeGpu:
    return FakeGpu(max_batch=7)


@pytest.fixture(params=[ThreadsExecutor, BridgeCpu])
def manager(strategy: ExecutionStrategy, gpu: FakeGpu, request: pytest.FixtureRequest) -> StrategyManager:
    cpu: CpuExecutor = ThreadsExecutor(3) if request.param is ThreadsExecutor else BridgeCpu()
    return StrategyManager(cpu, gpu, strategy, learn=False)


def a_bit(task: Any) -> Any:
    time.sleep(1e-4)
    return task


class Stop(BaseException):
    """What ``sys.exit`` in a task is like."""


@pytest.mark.parametrize("kind", [Stop, SystemExit, KeyboardInterrupt])
def test_what_is_no_exception_ends_the_batch(manager: StrategyManager, kind: type[BaseException]) -> None:
    def stops(task: int) -> int:
        time.sleep(1e-4)
        if task % 50 == 30:
            raise kind
        return task

    with pytest.raises(kind):
        manager.execute(range(200), stops, on_error="collect")


def test_an_interrupted_caller_leaves_at_once(strategy: ExecutionStrategy) -> None:
    never, caller, first = threading.Event(), threading.current_thread(), threading.Lock()

    def hangs_elsewhere(task: int) -> None:
        if first.acquire(blocking=False):
            _thread.interrupt_main()
        if threading.current_thread() is not caller:
            never.wait()

    manager = StrategyManager(ThreadsExecutor(3), FakeGpu(max_batch=1), strategy, learn=False)
    with pytest.raises(KeyboardInterrupt):
        manager.execute(range(20), hangs_elsewhere)
    never.set()


def test_tasks_that_cannot_be_read(manager: StrategyManager) -> None:
    def tasks() -> Iterator[int]:
        yield 1
        raise LookupError("no second task")

    with pytest.raises(LookupError, match="no second task"):
        manager.execute(tasks(), a_bit)


def test_a_progress_callback_that_raises_harms_nothing(
    manager: StrategyManager, caplog: pytest.LogCaptureFixture
) -> None:
    def progress(done: int, total: int) -> None:
        raise ZeroDivisionError

    assert manager.execute(range(50), a_bit, progress=progress).outputs == list(range(50))
    assert "the work goes on" in caplog.text


def test_progress_rises_to_the_end(manager: StrategyManager) -> None:
    told: list[tuple[int, int]] = []

    def fails_at_times(task: int) -> int:
        time.sleep(1e-4)
        if task % 3 == 0:
            raise ValueError(task)
        return task

    manager.execute(range(90), fails_at_times, on_error="collect", progress=lambda *facts: told.append(facts))
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert told[-1] == (90, 90)


def test_cancelled_before_the_start(manager: StrategyManager) -> None:
    cancel = threading.Event()
    cancel.set()
    result = manager.execute(range(20), a_bit, cancel=cancel)
    assert (result.stopped_by, result.unfinished_indices) == ("cancelled", tuple(range(20)))
    assert result.outputs == [None] * 20
    assert manager.execute([], a_bit, cancel=cancel).stopped_by is None


def test_no_time_at_all(manager: StrategyManager) -> None:
    with pytest.raises(UnfinishedError, match="20 of 20") as late:
        manager.execute(range(20), a_bit, timeout=0)
    assert late.value.result.outputs == [None] * 20
    assert manager.execute([], a_bit, timeout=0).outputs == []


@pytest.mark.parametrize("timeout", [float("inf"), 1e300])
def test_all_the_time_in_the_world(manager: StrategyManager, timeout: float) -> None:
    assert manager.execute(range(20), a_bit, timeout=timeout).outputs == list(range(20))


@pytest.mark.parametrize("timeout", [float("nan"), -1.0])
def test_no_time_that_there_is(manager: StrategyManager, timeout: float) -> None:
    with pytest.raises(ValueError, match="cannot be negative"):
        manager.execute(range(20), a_bit, timeout=timeout)


def test_nothing_to_do(manager: StrategyManager) -> None:
    result = manager.execute([], a_bit)
    assert (result.outputs, result.fallback_occurred, result.stopped_by) == ([], False, None)


class Odd:
    """Equal to nothing, not even to itself, and without a truth value."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise TypeError("not comparable")

    def __bool__(self) -> bool:
        raise TypeError("neither true nor false")

    def __len__(self) -> int:
        raise TypeError("no length")


@pytest.mark.parametrize("rerun", ["on_failure", "freely", "never"])
@pytest.mark.parametrize("make", [Odd, lambda: None, lambda: np.arange(3), lambda: ..., list])
def test_tasks_and_outputs_of_any_kind(
    manager: StrategyManager, gpu: FakeGpu, rerun: Any, make: Callable[[], Any]
) -> None:
    tasks = [make() for _ in range(40)]
    gpu.max_batch = None if rerun == "never" else 7
    result = manager.execute(tasks, a_bit, rerun=rerun)
    assert len(result.outputs) == 40
    assert all(output is task for output, task in zip(result.outputs, tasks, strict=True))


def test_an_array_of_tasks(manager: StrategyManager) -> None:
    tasks = np.arange(60, dtype=np.float32).reshape(20, 3)
    outputs = manager.execute(tasks, lambda row: row.sum()).outputs
    np.testing.assert_array_equal(outputs, tasks.sum(axis=1))


def test_a_list_that_shrinks_meanwhile(manager: StrategyManager) -> None:
    tasks = list(range(100))

    def takes_one(task: int) -> int:
        tasks.pop()
        return a_bit(task)  # type: ignore[no-any-return]

    assert manager.execute(tasks, takes_one).outputs == list(range(100))
    assert tasks == []


def test_a_task_that_runs_a_batch_itself(manager: StrategyManager) -> None:
    def nested(task: int) -> int:
        return sum(manager.execute(range(task), a_bit).outputs)

    assert manager.execute(range(12), nested).outputs == [sum(range(task)) for task in range(12)]


def test_one_error_once(manager: StrategyManager) -> None:
    """A task that raises is not begun again, wherever and whenever it raises."""
    seen: list[int] = []

    def fails(task: int) -> int:
        seen.append(task)
        raise ValueError(task)

    result = manager.execute(range(30), fails, on_error="collect")
    assert sorted(seen) == list(range(30))
    assert [failure.index for failure in result.failures] == list(range(30))
    assert not result.fallback_occurred


@pytest.mark.parametrize("on_error", ["raise", "collect"])
def test_words_do_not_make_a_users_error_the_devices(manager: StrategyManager, on_error: Any) -> None:
    def fails(task: int) -> int:
        if task == 17:
            local = "a local variable"
            raise ValueError(f"CUDA out of memory, says the {local[8:]}")
        return task

    if on_error == "raise":
        with pytest.raises(ValueError, match="out of memory") as raised:
            manager.execute(range(30), fails)
        error: Any = raised.value
        assert "task 17" in getattr(error, "__notes__", ["task 17"])[0]
    else:
        result = manager.execute(range(30), fails, on_error="collect")
        assert (result.failed_indices, result.fallback_occurred) == ((17,), False)
        error = result.failures[0].error
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    assert trace.tb_frame.f_locals["local"] == "a local variable"


def test_retries_are_counted_and_end_with_the_batch(manager: StrategyManager) -> None:
    seen: list[int] = []

    def fails_twice(task: int) -> int:
        seen.append(task)
        if task == 3 and seen.count(3) < 3:
            raise OSError("not yet")
        return task

    result = manager.execute(range(10), fails_twice, retry=Retry(times=2))
    assert (result.outputs, result.retries, seen.count(3)) == (list(range(10)), 2, 3)

    def never_works(task: int) -> int:
        raise OSError("never")

    with pytest.raises(UnfinishedError):
        manager.execute(range(2), never_works, retry=Retry(times=5, wait_s=600), timeout=0.05)


def test_a_lane_that_leaves_work_behind_is_told_so(strategy: ExecutionStrategy) -> None:
    class Lazy(BridgeCpu):
        name = "lazy"

        def work(self, work: TaskQueue, *, caller: bool) -> None:
            piece = work.take(DeviceKind.CPU, 1)
            if piece is not None:
                work.finish(piece.start, piece.tasks)

    manager = StrategyManager(Lazy(), None, strategy)
    with pytest.raises(DeviceError, match="returned although tasks were left"):
        manager.execute(range(5), abs)


def test_a_lane_that_raises_in_its_thread_is_heard(strategy: ExecutionStrategy) -> None:
    class Broken(BridgeCpu):
        name = "broken"

        def work(self, work: TaskQueue, *, caller: bool) -> None:
            raise LookupError("no workers")

    gpu = FakeGpu(max_batch=0)
    with pytest.raises(LookupError, match="no workers"):
        StrategyManager(Broken(), gpu, strategy, learn=False).execute(range(30), abs)


def test_a_kernel_for_many_that_fails_on_one(strategy: ExecutionStrategy) -> None:
    seen: list[int] = []
    kernel = Kernel(lambda task: 100 // task)

    @kernel.gpu_batch
    def many(tasks: Sequence[int], device: str) -> list[int]:
        seen.append(len(tasks))
        return [100 // task for task in tasks]

    manager = StrategyManager(ThreadsExecutor(2), FakeGpu(), strategy, learn=False)
    result = manager.execute([5, 0, *[2] * 62], kernel, on_error="collect")
    assert result.failed_indices == (1,)
    assert blanked(result.outputs) == [20, None, *[50] * 62]
    assert isinstance(result.failures[0].error, ZeroDivisionError)
    assert not result.fallback_occurred, "the CPU could not do it either"
    assert len(seen) <= 2 * 6 + 16
