"""A token ends a batch early, also when a task or a whole executor does not come back."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from accelera.execution import (
    ExecutionResult,
    ExecutionStrategy,
    ProcessesExecutor,
    StrategyManager,
    ThreadsExecutor,
)
from accelera.execution.tasks import batch
from accelera.testing._internal import BridgeGpu

PATIENCE_S = 300
"""Longer than anything here takes, shorter than for ever."""


class Hangs(BridgeGpu):
    """An executor in the manner of seed 002 that begins and does not come back before it is let go."""

    name = "hangs"

    def __init__(self) -> None:
        super().__init__()
        self.began, self.go, self.back = threading.Event(), threading.Event(), threading.Event()

    def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> list[Any]:
        self.began.set()
        self.go.wait(PATIENCE_S)
        self.back.set()
        return super().execute_batch(tasks, process_fn)


@pytest.fixture
def hangs() -> Iterator[Hangs]:
    executor = Hangs()
    yield executor
    executor.go.set()


def cancelled(manager: StrategyManager, began: threading.Event, function: Any = abs) -> ExecutionResult[Any]:
    """Run eight tasks and set the token once the first has begun."""
    cancel, results = threading.Event(), list[ExecutionResult[Any]]()

    def run() -> None:
        results.append(manager.execute(range(8), function, cancel=cancel))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert began.wait(PATIENCE_S)
    cancel.set()
    thread.join(PATIENCE_S)
    assert results, "the batch did not end"
    return results[0]


def test_an_executor_that_hangs_is_left_behind(hangs: Hangs) -> None:
    result = cancelled(StrategyManager.cpu_only(hangs), hangs.began)
    assert result.stopped_by == "cancelled"
    assert result.unfinished_indices == tuple(range(8))


@pytest.mark.parametrize(
    "strategy", [ExecutionStrategy.GpuOnly, ExecutionStrategy.Hybrid(), ExecutionStrategy.Hybrid(50, 50)]
)
def test_a_gpu_that_hangs_is_left_behind_with_what_it_has(hangs: Hangs, strategy: ExecutionStrategy) -> None:
    manager = StrategyManager(ThreadsExecutor(2), hangs, strategy, learn=False)
    result = cancelled(manager, hangs.began)
    assert result.stopped_by == "cancelled"
    assert result.unfinished_indices
    assert all(output in (None, index) for index, output in enumerate(result.outputs))


def test_what_comes_after_it_changes_nothing(hangs: Hangs) -> None:
    back = threading.Event()

    def last(task: int) -> int:
        if task == 7:
            back.set()
        return task

    result = cancelled(StrategyManager.cpu_only(hangs), hangs.began, last)
    hangs.go.set()
    assert back.wait(PATIENCE_S)
    assert result.outputs == [None] * 8
    assert result.per_device == {}


def test_a_task_that_hangs_costs_only_itself() -> None:
    began, go = threading.Event(), threading.Event()

    def one_hangs(task: int) -> int:
        if task == 0:
            go.wait(PATIENCE_S)
        elif task == 7:
            began.set()
        return task

    result = cancelled(StrategyManager.cpu_only(ThreadsExecutor(2)), began, one_hangs)
    go.set()
    assert result.outputs == [None, 1, 2, 3, 4, 5, 6, 7]


def test_what_is_under_way_and_quick_is_still_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "GRACE_S", PATIENCE_S)
    began, cancel = threading.Event(), threading.Event()

    def sets(task: int) -> int:
        began.set()
        cancel.wait(PATIENCE_S)
        return task

    threading.Thread(target=lambda: began.wait(PATIENCE_S) and cancel.set(), daemon=True).start()
    result = StrategyManager.cpu_only(ThreadsExecutor(1)).execute(range(8), sets, cancel=cancel)
    assert result.outputs == [0] + [None] * 7
    assert result.per_device["cpu"].tasks == 1


@pytest.mark.parametrize("options", [{"cancel": threading.Event()}, {"timeout": PATIENCE_S}])
def test_a_batch_that_is_not_stopped_counts_all_that_was_done(options: dict[str, Any]) -> None:
    manager = StrategyManager.cpu_only(ThreadsExecutor(4))
    for _ in range(200):
        assert manager.execute(range(8), abs, **options).per_device["cpu"].tasks == 8


def test_worker_processes_that_hang_are_ended() -> None:
    cancel = threading.Event()
    with ProcessesExecutor(1) as executor:
        manager = StrategyManager.cpu_only(executor)
        manager.execute([1], abs)
        (before,) = executor.process_ids
        threading.Timer(0.2, cancel.set).start()
        result = manager.execute([3600.0], time.sleep, cancel=cancel)
        assert result.unfinished_indices == (0,)
        assert manager.execute([-1], abs).outputs == [1]
        assert executor.process_ids != [before]


def test_a_cancelled_coroutine_does_not_wait_for_an_executor_that_hangs(hangs: Hangs) -> None:
    async def main() -> None:
        running = asyncio.create_task(StrategyManager.cpu_only(hangs).aexecute(range(8), abs))
        await asyncio.to_thread(hangs.began.wait, PATIENCE_S)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert not hangs.back.is_set(), "the end of the loop waits for the thread that called execute"
