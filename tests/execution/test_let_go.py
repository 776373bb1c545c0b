"""A batch whose tasks raise holds nothing: all goes with the last exception, not with the collector."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from accelera.execution import (
    AutoCpuExecutor,
    CpuExecutor,
    ExecutionStrategy,
    StrategyManager,
    ThreadsExecutor,
)
from accelera.testing import FakeGpu
from accelera.testing._internal import BridgeCpu, transient

PATIENCE_S = 300


class Thing:
    """What a weak reference can be had of."""

    fails = False


@pytest.fixture(autouse=True)
def without_a_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(params=[AutoCpuExecutor, ThreadsExecutor, BridgeCpu])
def cpu(request: pytest.FixtureRequest) -> CpuExecutor:
    executor: CpuExecutor = request.param() if request.param is BridgeCpu else request.param(2)
    return executor


@pytest.fixture(
    params=[
        ExecutionStrategy.CpuOnly,
        ExecutionStrategy.GpuOnly,
        ExecutionStrategy.Hybrid(),
        ExecutionStrategy.Hybrid(50, 50),
    ],
    ids=str,
)
def manager(cpu: CpuExecutor, request: pytest.FixtureRequest) -> StrategyManager:
    return StrategyManager(cpu, FakeGpu(max_batch=20, faults={1: transient}), request.param, learn=False)


def some_fail(task: Thing) -> Thing:
    time.sleep(1e-4)
    if task.fails:
        raise LookupError
    return Thing()


def things() -> tuple[list[Thing], list[weakref.ref[Thing]]]:
    tasks = [Thing() for _ in range(60)]
    for task in tasks[10::10]:
        task.fails = True
    return tasks, [weakref.ref(task) for task in tasks]


def raised(run: Callable[[], object]) -> type[Exception]:
    """Return the kind of what ``run`` raises, and let go of it."""
    try:
        run()
    except Exception as error:
        return type(error)
    raise AssertionError("nothing was raised")


def all_gone(references: Sequence[weakref.ref[Any]]) -> bool:
    """Return whether they are, once threads that are about to end have ended."""
    until = time.monotonic() + PATIENCE_S
    while any(each() is not None for each in references) and time.monotonic() < until:
        time.sleep(0.001)
    return all(each() is None for each in references)


def test_tasks_of_a_batch_that_raised(manager: StrategyManager) -> None:
    tasks, known = things()

    assert raised(lambda: manager.execute(tasks, some_fail)) is LookupError
    tasks.clear()
    assert all_gone(known)


@pytest.mark.parametrize("executor", [AutoCpuExecutor, ThreadsExecutor])
def test_tasks_of_an_executor_that_raised(executor: Any) -> None:
    tasks, known = things()
    assert raised(lambda: executor(2).execute_batch(tasks, some_fail)) is LookupError
    tasks.clear()
    assert all_gone(known)


@pytest.mark.parametrize("strategy", [ExecutionStrategy.CpuOnly, ExecutionStrategy.Hybrid()], ids=str)
def test_tasks_of_a_batch_that_an_executor_ended(strategy: ExecutionStrategy) -> None:
    class Breaks(BridgeCpu):
        def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> list[Any]:
            raise OSError("no workers")

    tasks, known = things()
    manager = StrategyManager(Breaks(), FakeGpu(max_batch=20, task_s=1e-3), strategy, learn=False)
    assert raised(lambda: manager.execute(tasks, some_fail, on_error="collect")) is OSError
    tasks.clear()
    assert all_gone(known)


def test_what_did_not_fail_goes_though_an_exception_is_kept(manager: StrategyManager) -> None:
    """An exception keeps the calls of the user's that it came through, and nothing of ours."""
    tasks, known = things()

    def run() -> list[BaseException]:
        result = manager.execute(tasks, some_fail, on_error="collect", timeout=600)
        return [failure.error for failure in result.failures]

    errors = run()
    good = [each for each, task in zip(known, tasks, strict=True) if not task.fails]
    tasks.clear()
    assert len(errors) == 5
    assert all_gone(good)


def fails_at_once(task: Thing) -> Thing:
    raise LookupError


def test_tasks_of_a_batch_whose_first_task_raised_in_the_calling_thread() -> None:
    tasks, known = things()
    manager = StrategyManager(ThreadsExecutor(2), learn=False)
    assert raised(lambda: manager.execute(tasks, fails_at_once)) is LookupError
    tasks.clear()
    assert all_gone(known)


@pytest.mark.parametrize("fallback", ["unfinished", "all"])
def test_tasks_of_a_batch_whose_errors_were_collected(manager: StrategyManager, fallback: Any) -> None:
    tasks, known = things()
    manager.execute(tasks, fails_at_once, on_error="collect", fallback=fallback)
    tasks.clear()
    assert all_gone(known)
