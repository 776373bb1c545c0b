"""Batches of work through ``StrategyManager``: outputs in order, errors that are the user's own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from accelera.errors import UnfinishedError, UnknownNameError
from accelera.execution import ExecutionStrategy, Retry, StrategyManager, ThreadsExecutor
from accelera.testing._internal import BridgeCpu, BridgeGpu
from tests.execution.stand_ins import blanked, square


def odd_fails(number: int) -> int:
    if number % 2:
        raise ValueError(f"{number} is odd")
    return number


@pytest.mark.parametrize("count", [0, 1, 2, 10, 1000, 30_000])
@pytest.mark.parametrize("cpu", [None, BridgeCpu(), ThreadsExecutor(1), ThreadsExecutor(3)])
def test_outputs_are_in_order(cpu: Any, count: int) -> None:
    result = StrategyManager.cpu_only(cpu).execute(range(count), square)
    assert result.outputs == [number * number for number in range(count)]
    assert result.strategy_used == ExecutionStrategy.CpuOnly
    assert (result.fallback_occurred, result.errors) == (False, ())
    assert sum(share.tasks for share in result.per_device.values()) == count


def test_long_tasks_are_shared_by_threads() -> None:
    threads: set[int] = set()

    def slow(number: int) -> int:
        threads.add(threading.get_ident())
        time.sleep(0.02)
        return number

    result = StrategyManager.cpu_only(ThreadsExecutor(3)).execute(range(12), slow)
    assert result.outputs == list(range(12))
    assert len(threads) >= 2


@pytest.mark.parametrize("cpu", [None, BridgeCpu()])
def test_a_users_exception_is_the_users(cpu: Any) -> None:
    with pytest.raises(ValueError, match="1 is odd") as raised:
        StrategyManager.cpu_only(cpu).execute(range(4), odd_fails)
    assert getattr(raised.value, "__notes__", ["task 1 on cpu"]) == ["task 1 on cpu"]


@pytest.mark.parametrize("cpu", [None, BridgeCpu()])
def test_errors_are_collected_or_skipped(cpu: Any) -> None:
    manager = StrategyManager.cpu_only(cpu)
    collected = manager.execute(range(5), odd_fails, on_error="collect")
    assert blanked(collected.outputs) == [0, None, 2, None, 4]
    assert collected.failed_indices == (1, 3)
    with pytest.raises(Exception, match="2 tasks failed") as group:
        collected.raise_for_errors()
    assert [str(each) for each in group.value.exceptions] == ["1 is odd", "3 is odd"]  # type: ignore[attr-defined]
    assert manager.execute(range(5), odd_fails, on_error="skip").outputs == [0, 2, 4]


def test_a_shared_batch_is_parted_as_asked() -> None:
    gpu, cpu = BridgeGpu(), BridgeCpu()
    strategy = ExecutionStrategy.Hybrid(gpu_allocation=70, cpu_allocation=30)
    result = StrategyManager.with_strategy(cpu, gpu, strategy).execute(range(20), square)
    assert result.outputs == [number * number for number in range(20)]
    assert (gpu.batches, cpu.batches) == ([14], [6])


@pytest.mark.parametrize("room", [0, 1, 37, 200, 10**6])
@pytest.mark.parametrize("strategy", [ExecutionStrategy.GpuOnly, ExecutionStrategy.Hybrid()])
def test_what_does_not_fit_is_done_all_the_same(strategy: ExecutionStrategy, room: int) -> None:
    gpu = BridgeGpu(room)
    result = StrategyManager(None, gpu, strategy).execute(range(300), square)
    assert result.outputs == [number * number for number in range(300)]
    assert result.fallback_occurred == (room == 0)
    assert max(gpu.batches, default=0) <= room


def test_falling_back_for_all_or_never() -> None:
    manager = StrategyManager(None, BridgeGpu(4), ExecutionStrategy.GpuOnly)
    done = manager.execute(range(20), square, fallback="all")
    assert done.outputs == [number * number for number in range(20)]
    assert done.per_device["cpu"].tasks == 20
    assert done.fallback_occurred
    with pytest.raises(RuntimeError, match="out of memory"):
        manager.execute(range(20), square, fallback="never")


def test_tasks_are_tried_again_only_when_asked() -> None:
    seen: list[int] = []

    def fails_once(number: int) -> int:
        seen.append(number)
        if seen.count(number) < 2:
            raise OSError("not yet")
        return number

    manager = StrategyManager.cpu_only()
    assert manager.execute(range(3), fails_once, retry=Retry(times=1)).outputs == [0, 1, 2]
    assert sorted(seen) == [0, 0, 1, 1, 2, 2]
    seen.clear()
    with pytest.raises(OSError, match="not yet"):
        manager.execute(range(3), fails_once)
    assert len(seen) <= 3


def test_a_batch_that_takes_too_long_has_what_is_done() -> None:
    manager = StrategyManager.cpu_only(ThreadsExecutor(2))
    never = threading.Event()

    def hangs(number: int) -> int:
        if number == 5:
            never.wait()
        return number

    with pytest.raises(UnfinishedError, match="1 of 6 tasks") as late:
        manager.execute(range(6), hangs, timeout=1.0)
    assert late.value.result.outputs == [0, 1, 2, 3, 4, None]
    assert late.value.result.unfinished_indices == (5,)
    never.set()


def test_a_batch_can_be_cancelled() -> None:
    cancel = threading.Event()

    def cancels(number: int) -> int:
        if number == 2:
            cancel.set()
        return number

    result = StrategyManager.cpu_only(ThreadsExecutor(1)).execute(range(100), cancels, cancel=cancel)
    assert result.stopped_by == "cancelled"
    assert result.outputs[:3] == [0, 1, 2]
    assert result.unfinished_indices[-1] == 99


def test_words_that_are_no_options() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'collect'"):
        StrategyManager.cpu_only().execute([1], square, on_error="colect")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="seconds cannot be negative"):
        StrategyManager.cpu_only().execute([1], square, timeout=-1)


def test_a_bridge_may_have_attributes_that_ours_have() -> None:
    class BridgeCpu:
        inline = True
        workers = ("one", "two")

        def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> list[Any]:
            return [process_fn(task) for task in tasks]

    assert StrategyManager(BridgeCpu()).execute(range(5), abs).outputs == list(range(5))
