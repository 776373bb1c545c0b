"""Threads by default; processes where threads hold each other up, and only where nobody would notice."""

from __future__ import annotations

import functools
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from accelera.execution import AutoCpuExecutor, Retry, StrategyManager, ThreadsExecutor, kernel
from accelera.execution.executors import auto, threads
from accelera.execution.executors.auto import LEAST_S, ScalingProbe, transfer_s
from accelera.execution.executors.processes.side_effects import has_no_side_effects

SCALE = 3
TABLE = {"a": 1}


@pytest.fixture
def executor() -> Iterator[AutoCpuExecutor]:
    with AutoCpuExecutor(2) as executor:
        yield executor


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stay with threads, and let none have been ready without a core: others may be busy meanwhile."""
    monkeypatch.setattr(auto, "SWITCH_S", math.inf)
    monkeypatch.setattr(auto, "_runnable_wait_s", lambda: 0.0)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every gain worth it, so that tests take no seconds."""
    monkeypatch.setattr(auto, "START_S", 1e-3)
    monkeypatch.setattr(auto, "SWITCH_S", 1e-2)


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


@pytest.mark.usefixtures("eager")
def test_a_function_that_was_found_to_hold_the_lock_goes_to_processes(executor: AutoCpuExecutor) -> None:
    gauge = executor.probe_of(where)
    held(gauge)
    gauge.transfer_s = 1e-6
    result = StrategyManager.cpu_only(executor).execute(range(30), where)
    assert os.getpid() not in processes_of(result.outputs)
    assert set(result.per_device) == {"processes"}


@pytest.mark.usefixtures("eager")
def test_a_batch_under_way_changes_to_processes(executor: AutoCpuExecutor) -> None:
    held(executor.probe_of(where))
    result = StrategyManager.cpu_only(executor).execute(range(100), where)
    assert os.getpid() in processes_of(result.outputs)
    assert set(result.per_device) == {"cpu", "processes"}


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


@pytest.mark.usefixtures("eager")
def test_waiting_is_not_holding(executor: AutoCpuExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    manager, function = StrategyManager.cpu_only(executor), kernel(pure=True)(sleeping)
    monkeypatch.setattr(auto, "clocks", lambda: (Waiting.perf_counter(), 0.0, 0.0))
    monkeypatch.setattr(threads, "time", Waiting)
    for _ in range(2):
        result = manager.execute(range(80), function)
        assert processes_of(result.outputs) == {os.getpid()}
    assert executor.probe_of(function).speedup == pytest.approx(2)


@pytest.mark.usefixtures("eager")
def test_what_must_stay_stays(executor: AutoCpuExecutor) -> None:
    seen: list[int] = []

    def remembers(task: int) -> tuple[int, int]:
        seen.append(task)
        return where(task)

    lock = threading.Lock()

    @kernel(pure=True)
    def cannot_be_sent(task: int) -> tuple[int, int]:
        with lock:
            return where(task)

    manager = StrategyManager.cpu_only(executor)
    for function in (remembers, cannot_be_sent):
        gauge = executor.probe_of(function)
        held(gauge)
        gauge.transfer_s = 1e-6
        assert processes_of(manager.execute(range(20), function).outputs) == {os.getpid()}
    assert sorted(seen) == list(range(20))


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("handing", [0.002, math.inf])
def test_what_is_not_worth_it_stays(executor: AutoCpuExecutor, handing: float) -> None:
    gauge = executor.probe_of(where)
    held(gauge)
    gauge.transfer_s = handing
    result = StrategyManager.cpu_only(executor).execute(range(20), where)
    assert processes_of(result.outputs) == {os.getpid()}


def test_little_work_does_not_start_workers(
    executor: AutoCpuExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    gauge = executor.probe_of(where)
    held(gauge)
    gauge.transfer_s = 1e-6
    monkeypatch.setattr(auto, "START_S", math.inf)
    result = StrategyManager.cpu_only(executor).execute(range(5), where)
    assert processes_of(result.outputs) == {os.getpid()}


def test_a_kernel_may_decide(executor: AutoCpuExecutor) -> None:
    manager = StrategyManager.cpu_only(executor)
    holding = kernel(releases_gil=False)(where)
    assert os.getpid() not in processes_of(manager.execute(range(8), holding).outputs)
    releasing = kernel(releases_gil=True)(where)
    held(executor.probe_of(where))
    assert processes_of(manager.execute(range(30), releasing).outputs) == {os.getpid()}


@pytest.mark.parametrize("options", [{}, {"timeout": 60.0}])
def test_tasks_that_cannot_be_sent_are_done_by_threads(
    executor: AutoCpuExecutor, options: dict[str, Any]
) -> None:
    tasks: list[Any] = list(range(40))
    tasks[20] = threading.Lock()

    @kernel(releases_gil=False)
    def shown(task: Any) -> Any:
        return threading.Lock() if task == 7 else str(type(task))

    result = StrategyManager.cpu_only(executor).execute(tasks, shown, **options)
    assert [index for index, output in enumerate(result.outputs) if not isinstance(output, str)] == [7]
    assert "lock" in result.outputs[20]
    assert result.failures == ()


def test_errors_are_the_users_wherever_they_happen(executor: AutoCpuExecutor) -> None:
    def fails(task: int) -> int:
        if task == 3:
            raise ValueError("three")
        return task

    for function in (fails, kernel(releases_gil=False)(fails)):
        with pytest.raises(ValueError, match="three"):
            StrategyManager.cpu_only(executor).execute(range(6), function)
        with pytest.raises(ValueError, match="three"):
            executor.execute_batch(range(6), function)
        assert executor.execute_batch(range(3), function) == [0, 1, 2]


def test_a_measurement_that_processes_do_not_bear_out_is_forgotten(executor: AutoCpuExecutor) -> None:
    gauge = executor.probe_of(where)
    held(gauge, alone_s=1e-5)
    gauge.transfer_s = 1e-9
    executor.execute_batch(range(60_000 // 100), where)
    StrategyManager.cpu_only(executor).execute(range(8), kernel(releases_gil=False)(where))
    assert executor.probe_of(where).alone_s is None


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


def test_what_handing_over_takes() -> None:
    assert transfer_s(1, None) == math.inf
    array = np.ones(1 << 20)
    assert transfer_s(array, array) == math.inf
    assert transfer_s(threading.Lock(), 1) == math.inf
    assert transfer_s(1, 2) < 1e-5
    assert transfer_s(array, 2) > 1e-3


def constant(task: int) -> float:
    return SCALE * task + np.pi


def recursive(task: int) -> int:
    return 1 if task < 2 else task * recursive(task - 1)


def reads_a_table(task: str) -> int:
    return TABLE[task]


def writes_a_global(task: int) -> int:
    global SCALE
    SCALE = task
    return task


def through_another(task: str) -> int:
    return reads_a_table(task)


class Caller:
    def __call__(self, task: int) -> int:
        return task

    def method(self, task: int) -> int:
        return task


def closures() -> tuple[Callable[[int], int], Callable[[int], int], Callable[[int], int]]:
    number, numbers, count = 3, [3], 0

    def reads(task: int) -> int:
        return task + number

    def appends(task: int) -> int:
        numbers.append(task)
        return task

    def counts(task: int) -> int:
        nonlocal count
        count += 1
        return task

    return reads, appends, counts


WRITTEN = np.zeros(4)
FIXED = np.arange(4)
FIXED.setflags(write=False)


class Counts:
    seen = 0


def fills_an_array(task: int) -> float:
    WRITTEN[task] = task
    return WRITTEN[task] + 1.0


def reads_a_fixed_array(task: int) -> int:
    return FIXED[task] + 1


def counts_in_a_class(task: int) -> int:
    Counts.seen += 1
    return task + 1


def remembers_by_keyword(task: int, *, seen: list[int] = []) -> int:  # noqa: B006
    seen.append(task)
    return task + 1


def remembers_on_itself(task: int) -> int:
    remembers_on_itself.seen.append(task)
    return task + 1


remembers_on_itself.seen = []


def closes_over_an_array() -> Callable[[int], float]:
    sums = np.zeros(4)

    def adds(task: int) -> float:
        np.add(sums, task, out=sums)
        return task + 1.0

    return adds


@pytest.mark.parametrize(
    "function",
    [fills_an_array, counts_in_a_class, remembers_by_keyword, remembers_on_itself, closes_over_an_array()],
    ids=lambda function: function.__name__,
)
def test_what_a_function_writes_to_is_not_lost_in_another_process(function: Callable[[int], Any]) -> None:
    assert not has_no_side_effects(function)
    assert not has_no_side_effects(functools.partial(function))


def test_an_array_that_nobody_can_write_to_is_a_constant() -> None:
    assert has_no_side_effects(reads_a_fixed_array)


def test_functions_that_keep_to_themselves() -> None:
    reads, appends, counts = closures()
    for function in (constant, recursive, reads, abs, np.sqrt, math.sin, functools.partial(pow, 2), int):
        assert has_no_side_effects(function), function
    items: list[int] = []
    outward: list[Callable[..., Any]] = [reads_a_table, writes_a_global, through_another, appends, counts]
    outward += [Caller(), Caller().method, items.append, functools.partial(appends, 1)]
    outward += [lambda task: [items.append(each) for each in task], functools.partial(max, items)]
    for function in outward:
        assert not has_no_side_effects(function), function
    assert has_no_side_effects(kernel(pure=True)(appends))
    assert not has_no_side_effects(kernel(appends))


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
