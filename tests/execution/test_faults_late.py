"""Tasks late on one side and begun on the other: nobody waits, and what comes late changes nothing."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelera.execution import ExecutionStrategy, StrategyManager, ThreadsExecutor, request
from accelera.execution._internal import Kernel
from accelera.execution.tasks import batch
from accelera.execution.tasks import queue as task_queue
from accelera.execution.tasks.balance import BackupTasks
from accelera.execution.tasks.queue import DeviceKind
from accelera.testing import FakeGpu, sticky
from accelera.testing._internal import BridgeGpu

HYBRIDS = [ExecutionStrategy.Hybrid(), ExecutionStrategy.Hybrid(50, 50)]


class Hanging:
    """A function that does not come back on one side, before it is let go; no task ends before it hangs."""

    def __init__(self, name: str, then: Callable[[int], int] = lambda task: -task) -> None:
        self._name, self._then = name, then
        self._lock = threading.Lock()
        self.hung = threading.Event()
        self.go = threading.Event()
        self.back = threading.Event()

    def __call__(self, task: int) -> int:
        if threading.current_thread().name.endswith(self._name) and self._is_first():
            self.go.wait()
            try:
                return self._then(task)
            finally:
                self.back.set()
        assert self.hung.wait(300)
        time.sleep(1e-3)
        return -task

    def _is_first(self) -> bool:
        with self._lock:
            first = not self.hung.is_set()
            self.hung.set()
            return first


@pytest.fixture(params=["fake", "cpu"])
def name(request: pytest.FixtureRequest) -> str:
    """The end of the name of the thread that hangs."""
    return str(request.param)


@pytest.fixture
def slow_gpu() -> FakeGpu:
    return FakeGpu(max_batch=3)


@pytest.mark.parametrize(("strategy", "workers"), [(HYBRIDS[0], 1), (HYBRIDS[0], 4), (HYBRIDS[1], 4)])
def test_nobody_waits_for_what_is_late(
    strategy: ExecutionStrategy, workers: int, name: str, slow_gpu: FakeGpu
) -> None:
    told: list[int] = []
    function = Hanging(name)
    manager = StrategyManager(ThreadsExecutor(workers), slow_gpu, strategy, learn=False)
    result = manager.execute(
        range(100), function, rerun="freely", progress=lambda done, total: told.append(done)
    )
    assert function.hung.is_set()
    assert not function.back.is_set()
    expected = [-task for task in range(100)]
    assert result.outputs == expected
    before, told_before = copy.deepcopy(result), list(told)
    function.go.set()
    assert function.back.wait(300)
    time.sleep(0.01)
    assert result == before
    assert told == told_before


@pytest.mark.parametrize("late", [-1, "other"])
def test_what_comes_late_changes_nothing(late: Any, name: str, slow_gpu: FakeGpu) -> None:
    def otherwise(task: int) -> int:
        if late == "other":
            raise ValueError("too late to matter")
        return late  # type: ignore[no-any-return]

    function = Hanging(name, otherwise)
    manager = StrategyManager(ThreadsExecutor(2), slow_gpu, ExecutionStrategy.Hybrid(), learn=False)
    result = manager.execute(range(60), Kernel(function, pure=True), on_error="collect")
    function.go.set()
    assert function.back.wait(300)
    time.sleep(0.01)
    assert result.outputs == [-task for task in range(60)]
    assert result.failures == ()


def test_what_comes_after_the_timeout_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is over when all is done but what hangs."""
    clock = SimpleNamespace(now_s=0.0)
    times = SimpleNamespace(monotonic=lambda: clock.now_s, perf_counter=time.perf_counter)
    for module in (request, batch, task_queue):
        monkeypatch.setattr(module, "time", times)

    def progress(done: int, total: int) -> None:
        clock.now_s = 2.0 if done == total - 1 else 0.0

    function = Hanging("cpu", lambda task: 1 << 20)
    manager = StrategyManager.cpu_only(ThreadsExecutor(2))
    result = manager.execute(range(30), function, timeout=1.0, on_error="collect", progress=progress)
    before = copy.deepcopy(result)
    assert result.stopped_by == "timeout"
    assert len(result.unfinished_indices) == 1
    function.go.set()
    assert function.back.wait(300)
    time.sleep(0.01)
    assert result == before


def test_functions_that_are_not_pure_are_waited_for(slow_gpu: FakeGpu) -> None:
    seen: list[int] = []

    def slow_on_the_gpu(task: int) -> int:
        seen.append(task)
        time.sleep(0.02 if threading.current_thread().name.endswith("fake") else 1e-3)
        return task

    manager = StrategyManager(ThreadsExecutor(2), slow_gpu, ExecutionStrategy.Hybrid(), learn=False)
    assert manager.execute(range(40), slow_on_the_gpu).outputs == list(range(40))
    assert sorted(seen) == list(range(40))


def test_a_gpu_that_fails_at_what_was_taken_over_leaves_nothing() -> None:
    """What the CPU has done meanwhile does not fall back."""
    begun, go = threading.Event(), threading.Event()

    class Gpu(BridgeGpu):
        def execute_batch(self, tasks: Sequence[int], process_fn: Callable[[Any], Any]) -> list[Any]:
            begun.set()
            go.wait(300)
            raise sticky()

    seen: list[int] = []

    def function(task: int) -> int:
        begun.wait(300)
        seen.append(task)
        if task == 0:
            go.set()
            time.sleep(0.02)
        return task

    manager = StrategyManager(ThreadsExecutor(2), Gpu(), ExecutionStrategy.Hybrid(50, 50), learn=False)
    assert manager.execute(range(40), function, rerun="freely").outputs == list(range(40))
    assert set(seen) == set(range(40))


@given(
    taken=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    asked=st.lists(st.integers(1, 12), max_size=30),
    done=st.sets(st.integers(0, 60)),
    back=st.tuples(st.integers(0, 60), st.integers(0, 60)),
)
def test_each_late_task_is_handed_out_once(
    taken: list[int], asked: list[int], done: set[int], back: tuple[int, int]
) -> None:
    late, at = BackupTasks(), 0
    for count in taken:
        late.taken(DeviceKind.GPU, at, at + count)
        at += count
    late.returned(min(back), max(back))
    flying = set(range(at)) - set(range(min(back), max(back)))
    handed: list[int] = []
    for count in asked:
        found = late.take(DeviceKind.CPU, count, lambda index: index in done)
        if found is None:
            assert flying - done - set(handed) == set()
            break
        assert 0 < found[1] - found[0] <= count
        handed += [index for index in range(*found) if index not in done]
    assert len(handed) == len(set(handed))
    assert set(handed) <= flying - done
    assert late.take(DeviceKind.GPU, 5, lambda index: False) is None, "nobody overtakes itself"
