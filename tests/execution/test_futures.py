"""A manager as an executor of the standard library does what that promises, and coroutines end alone."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import itertools
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from accelera.execution import ExecutionStrategy, StrategyManager, ThreadsExecutor, kernel
from accelera.execution.kernel import identity_of
from accelera.testing import FakeGpu
from tests.execution.test_manager import odd_fails, square

GPU_ONLY = ExecutionStrategy.GpuOnly
PATIENCE_S = 300
"""Longer than anything here takes, shorter than for ever."""


@pytest.fixture(params=["ours", "theirs"])
def pool(request: pytest.FixtureRequest) -> Iterator[concurrent.futures.Executor]:
    """Ours, and the standard library's to compare with."""
    ours = request.param == "ours"
    with StrategyManager.cpu_only().as_executor(2) if ours else ThreadPoolExecutor(2) as executor:
        yield executor


def test_what_is_mapped_runs_though_nobody_looks(pool: concurrent.futures.Executor) -> None:
    seen: list[int] = []
    pool.map(seen.append, range(20))
    pool.shutdown()
    assert sorted(seen) == list(range(20))


@pytest.mark.parametrize("chunksize", [1, 7, 1000])
def test_outputs_are_mapped_in_order_up_to_what_fails(
    pool: concurrent.futures.Executor, chunksize: int
) -> None:
    assert list(pool.map(pow, range(50), itertools.count(), chunksize=chunksize)) == [n**n for n in range(50)]
    outputs = pool.map(odd_fails, [0, 2, 4, 5, 6], chunksize=chunksize)
    with pytest.raises(ValueError, match="is odd"):
        list(outputs)
    assert list(pool.map(square, [])) == []


def test_a_mapping_may_take_too_long(pool: concurrent.futures.Executor) -> None:
    go = threading.Event()
    with pytest.raises(TimeoutError):
        list(pool.map(lambda number: go.wait(PATIENCE_S), [1], timeout=0.05))
    go.set()


def test_nothing_is_taken_after_the_shutdown(pool: concurrent.futures.Executor) -> None:
    pool.shutdown()
    for begin in (lambda: pool.submit(square, 1), lambda: pool.map(square, [1])):
        with pytest.raises(RuntimeError, match="after shutdown"):
            begin()


def test_how_many_at_once_is_checked() -> None:
    for workers in (0, -1):
        with pytest.raises(ValueError, match=r"workers=.*: give at least 1"):
            StrategyManager.cpu_only().as_executor(workers)


def test_calls_are_cancelled_before_they_begin(pool: concurrent.futures.Executor) -> None:
    begun, go = threading.Semaphore(0), threading.Event()

    def waits() -> bool:
        begun.release()
        return go.wait(PATIENCE_S)

    running = [pool.submit(waits) for _ in range(2)]
    waiting = pool.submit(square, 3)
    for _ in running:
        begun.acquire()
    assert waiting.cancel()
    assert not running[0].cancel()
    go.set()
    assert [each.result(PATIENCE_S) for each in running] == [True, True]
    with pytest.raises(concurrent.futures.CancelledError):
        waiting.result()


def test_what_ends_a_thread_ends_its_call_alone(pool: concurrent.futures.Executor) -> None:
    def leaves() -> None:
        raise SystemExit(3)

    assert isinstance(pool.submit(leaves).exception(PATIENCE_S), SystemExit)
    assert pool.submit(square, 3).result(PATIENCE_S) == 9


def test_an_executor_that_nobody_holds_lets_go_of_its_threads() -> None:
    before = set(threading.enumerate())
    executor = StrategyManager.cpu_only().as_executor(2)
    assert executor.submit(square, 3).result() == 9
    gone = weakref.ref(executor)
    del executor
    gc.collect()
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert gone() is None


def test_a_buffer_bounds_what_is_drawn_and_is_refused_after_the_shutdown() -> None:
    drawn: list[int] = []
    executor = StrategyManager.cpu_only().as_executor(2)
    outputs = executor.map(square, (drawn.append(n) or n for n in itertools.count()), buffersize=8)
    assert list(itertools.islice(outputs, 20)) == [n * n for n in range(20)]
    assert len(drawn) <= 30
    executor.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.map(square, [1], buffersize=8)


class Manager:
    """Keeps what it is asked to run."""

    def __init__(self) -> None:
        self.functions: list[Any] = []
        self._manager = StrategyManager.cpu_only(ThreadsExecutor(1))

    def execute(self, tasks: Any, fn: Any) -> Any:
        self.functions.append(fn)
        return self._manager.execute(tasks, fn)

    def stream(self, tasks: Any, fn: Any, **options: Any) -> Any:
        self.functions.append(fn)
        return self._manager.stream(tasks, fn, **options)


def test_what_is_measured_and_moved_is_the_function_itself() -> None:
    from accelera.execution.futures import StrategyExecutor

    seen: list[int] = []

    def changes(number: int, more: int = 0) -> int:
        seen.append(number)
        return number + more

    manager = Manager()
    with StrategyExecutor(manager, 1) as executor:
        assert executor.submit(changes, 1).result() == 1
        assert executor.submit(changes, 1, more=2).result() == 3
        assert list(executor.map(changes, [1, 2])) == [1, 2]
        assert list(executor.map(changes, [1, 2], [5, 5], chunksize=2)) == [6, 7]
        assert list(executor.map(changes, [1, 2], [5, 5], buffersize=2)) == [6, 7]
    assert manager.functions[0] is changes
    assert {identity_of(function) for function in manager.functions} == {identity_of(changes)}


def test_a_kernels_batched_form_is_used() -> None:
    @kernel
    def double(task: int) -> int:
        return 2 * task

    @double.gpu_batch
    def _(tasks: list[int], device: Any) -> list[str]:
        return [f"batch {2 * task}" for task in tasks]

    gpu = FakeGpu()
    with StrategyManager.with_strategy(None, gpu, GPU_ONLY).as_executor(1) as executor:  # type: ignore[arg-type]
        assert list(executor.map(double, range(4), chunksize=4)) == [f"batch {2 * n}" for n in range(4)]
    assert gpu.calls == [4]


def test_a_cancelled_coroutine_leaves_the_token_of_others_alone() -> None:
    token, begun, go = threading.Event(), threading.Event(), threading.Event()

    def slow(number: int) -> bool:
        begun.set()
        return go.wait(PATIENCE_S)

    async def main(cancel: threading.Event | None) -> None:
        manager = StrategyManager.cpu_only(ThreadsExecutor(1))
        running = asyncio.create_task(manager.aexecute(range(9), slow, cancel=cancel))
        await asyncio.to_thread(begun.wait, PATIENCE_S)
        running.cancel()
        await running

    for cancel in (token, None):
        begun.clear()
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(main(cancel))
    assert not token.is_set()
    go.set()


def test_a_token_of_ones_own_still_ends_a_coroutine() -> None:
    token = threading.Event()

    def sets(number: int) -> int:
        token.set()
        time.sleep(0.001)
        return number

    async def main() -> Any:
        return await StrategyManager.cpu_only(ThreadsExecutor(1)).aexecute(range(500), sets, cancel=token)

    assert asyncio.run(main()).stopped_by == "cancelled"


def test_a_coroutine_does_not_wait_for_ever_where_a_task_raises_stop_iteration() -> None:
    def stops(task: int) -> int:
        raise StopIteration

    async def waits() -> None:
        await asyncio.wait_for(StrategyManager.cpu_only().aexecute([1], stops), 300)

    with pytest.raises(RuntimeError, match="StopIteration") as caught:
        asyncio.run(waits())
    assert isinstance(caught.value.__cause__, StopIteration)
