"""Threads by default with advice where they hold each other up; processes where the caller chose them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from accelera.errors import UnknownNameError
from accelera.execution import (
    AutoCpuExecutor,
    Retry,
    StrategyManager,
    ThreadsExecutor,
    WorkloadProfile,
    kernel,
)
from accelera.execution.executors import auto, threads
from accelera.execution.executors.auto import LEAST_S, ScalingProbe


@pytest.fixture
def executor() -> Iterator[AutoCpuExecutor]:
    with AutoCpuExecutor(2) as executor:
        yield executor


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no thread have been ready without a core: others may be busy meanwhile."""
    monkeypatch.setattr(auto, "_runnable_wait_s", lambda: 0.0)


def where(task: int) -> tuple[int, int]:
    """Return the task and the process that ran it, after some milliseconds with the lock held."""
    until = time.thread_time() + 0.004
    while time.thread_time() < until:
        sum(range(1000))
    return task, os.getpid()


class Waiting:
    """Takes the place of ``time``: a thread's clock goes on only while it waits, and has no core then."""

    mine = threading.local()

    @classmethod
    def perf_counter(cls) -> float:
        return getattr(cls.mine, "now_s", 0.0)


def sleeping(task: int) -> tuple[int, int]:
    Waiting.mine.now_s = Waiting.perf_counter() + 0.004
    return task, os.getpid()


def held(gauge: ScalingProbe, alone_s: float = 0.01) -> None:
    """Tell a gauge that two threads took twice as long for each task as one alone."""
    gauge.alone(1, alone_s, alone_s)
    for _ in range(20):
        gauge.together(2, 1, 2 * alone_s, alone_s)


def processes_of(outputs: list[tuple[int, int]]) -> set[int]:
    assert [task for task, _ in outputs] == list(range(len(outputs)))
    return {process for _, process in outputs}


@pytest.mark.usefixtures("patient")
def test_a_first_batch_is_measured(executor: AutoCpuExecutor) -> None:
    result = StrategyManager.cpu_only(executor).execute(range(100), where)
    assert set(result.per_device) == {"cpu"}
    gauge = executor.probe_of(where)
    assert gauge.alone_s is not None
    assert gauge.alone_s > 0.003
    assert gauge.speedup is not None


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("options", [{"timeout": 60.0}, {"retry": Retry()}, {"on_error": "collect"}])
def test_a_first_batch_with_options_is_measured_too(
    executor: AutoCpuExecutor, options: dict[str, Any]
) -> None:
    StrategyManager.cpu_only(executor).execute(range(60), where, **options)
    assert executor.probe_of(where).speedup is not None


def test_waiting_is_not_holding(executor: AutoCpuExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    manager, function = StrategyManager.cpu_only(executor), kernel(pure=True)(sleeping)
    monkeypatch.setattr(auto, "clocks", lambda: (Waiting.perf_counter(), 0.0, 0.0))
    monkeypatch.setattr(threads, "time", Waiting)
    for _ in range(2):
        result = manager.execute(range(80), function)
        assert processes_of(result.outputs) == {os.getpid()}
    assert executor.probe_of(function).speedup == pytest.approx(2)


def test_a_batch_stays_on_threads_with_advice(executor: AutoCpuExecutor) -> None:
    seen: list[int] = []

    def remembers(task: int) -> tuple[int, int]:
        seen.append(task)
        return where(task)

    manager = StrategyManager.cpu_only(executor)
    held(executor.probe_of(remembers))
    for function in (remembers, where):
        held(executor.probe_of(function))
        result = manager.execute(range(20), function)
        assert processes_of(result.outputs) == {os.getpid()}
        assert set(result.per_device) == {"cpu"}
    assert sorted(seen) == list(range(20))
    recommended = executor.recommendation(where)
    if recommended is not None:
        assert "interpreter lock" in recommended
        assert recommended in manager.explain(WorkloadProfile(20), where).reasons


def test_the_callers_choice_moves_all_tasks() -> None:
    manager = StrategyManager.cpu_only("processes")
    for count in (1, 30):
        result = manager.execute(range(count), where)
        assert os.getpid() not in processes_of(result.outputs)
        assert set(result.per_device) == {"processes"}
    with pytest.raises(UnknownNameError, match="fibers"):
        StrategyManager("fibers")  # type: ignore[arg-type]


def test_a_kernel_may_decide(executor: AutoCpuExecutor) -> None:
    manager = StrategyManager.cpu_only(executor)
    holding = kernel(processes=True)(where)
    assert os.getpid() not in processes_of(manager.execute(range(8), holding).outputs)
    releasing = kernel(releases_gil=True)(where)
    held(executor.probe_of(where))
    assert processes_of(manager.execute(range(30), releasing).outputs) == {os.getpid()}


def test_errors_are_the_users_wherever_they_happen(executor: AutoCpuExecutor) -> None:
    def fails(task: int) -> int:
        if task == 3:
            raise ValueError("three")
        return task

    for function in (fails, kernel(processes=True)(fails)):
        with pytest.raises(ValueError, match="three"):
            StrategyManager.cpu_only(executor).execute(range(6), function)
        with pytest.raises(ValueError, match="three"):
            executor.execute_batch(range(6), function)
        assert executor.execute_batch(range(3), function) == [0, 1, 2]


def test_a_quick_function_that_was_interrupted_once_does_not_go_to_threads_for_ever(
    executor: AutoCpuExecutor,
) -> None:
    def quick(task: int) -> int:
        return task

    executor.probe_of(quick).alone(10, 0.1, 0.1)
    assert executor.inline(quick, range(10))[0] == []
    assert executor.execute_batch(range(10), quick) == list(range(10))
    assert executor.inline(quick, range(10))[0] == list(range(10))


def test_speedup_of_threads() -> None:
    gauge = ScalingProbe()
    assert gauge.speedup is None
    gauge.alone(10, 0.1, 0.1)
    gauge.together(4, 1, LEAST_S / 2, 0.01)
    assert gauge.speedup is None


@pytest.mark.parametrize(
    ("alone", "together", "speedup", "held"),
    [
        ((10, 0.1, 0.1), (4, 100, 4.0, 1.0), 1.0, True),
        ((10, 0.1, 0.1), (4, 100, 1.0, 1.0), 4.0, False),
        ((10, 0.6, 0.1), (4, 100, 4.0, 1.0), 1.0, True),  # other programs took the core while it was alone
        ((10, 0.01, 0.01), (4, 100, 1.0, 1.0), 4.0, False),  # the first tasks were short
        ((10, 0.1, 0.001), (4, 100, 1.0, 0.01), 4.0, False),  # it waits for something
        ((10, 0.1, 0.001), (4, 100, 4.0, 0.01), 1.0, True),  # for something that only one may have
    ],
)
def test_speedup_is_told_apart(
    alone: tuple[int, float, float], together: tuple[int, int, float, float], speedup: float, held: bool
) -> None:
    gauge = ScalingProbe()
    gauge.alone(*alone)
    gauge.together(*together)
    assert gauge.speedup == pytest.approx(speedup)
    assert gauge.held is held


def test_old_measurements_fade() -> None:
    gauge = ScalingProbe()
    gauge.alone(1, 0.01, 0.01)
    gauge.together(2, 1000, 20.0, 10.0)
    assert gauge.held
    for _ in range(40):
        gauge.together(2, 100, 1.0, 1.0)
    assert not gauge.held


def test_managers_share_one_executor_that_loads_nothing_before_it_must() -> None:
    program = (
        "import sys\nfrom accelera.execution import StrategyManager\n"
        "StrategyManager.cpu_only().execute(range(100), abs)\n"
        "print({'cloudpickle', 'accelera.execution.executors.processes.executor'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "set()\n"
    assert auto.default_cpu() is auto.default_cpu()


def test_threads_that_had_the_cores_need_no_measurement_of_one_alone() -> None:
    gauge = ScalingProbe()
    gauge.together(2, 10, LEAST_S, 0.9 * LEAST_S)
    assert gauge.speedup == pytest.approx(1.8)
    assert not gauge.unclear
    assert not gauge.held
    gauge.together(2, 10, LEAST_S, 0.1 * LEAST_S)
    assert gauge.speedup is None
    assert gauge.unclear


def test_one_thread_says_nothing_of_several() -> None:
    gauge = ScalingProbe()
    gauge.together(1, 100, 4.0, 4.0)
    assert not gauge.unclear
    assert gauge.speedup is None


@pytest.mark.parametrize("make", [AutoCpuExecutor, ThreadsExecutor])
def test_no_task_of_a_slow_function_is_done_by_the_caller_alone(
    make: Callable[[int], AutoCpuExecutor | ThreadsExecutor],
) -> None:
    @kernel(releases_gil=True)
    def slow(task: int) -> int:
        time.sleep(0.01)
        return threading.get_ident()

    manager = StrategyManager.cpu_only(make(2))
    for _ in range(2):
        assert threading.get_ident() not in manager.execute(range(8), slow).outputs
