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
from accelera.execution.executors import auto
from accelera.execution.executors.lock_probe import (
    MAX_SAMPLES,
    MIN_SAMPLES,
    SAMPLE_PERIOD_S,
    LockProbe,
    ProbedQueue,
)
from accelera.execution.observability.telemetry import Telemetry
from accelera.execution.tasks.batch import Batch
from accelera.execution.tasks.queue import DeviceKind


@pytest.fixture
def executor() -> Iterator[AutoCpuExecutor]:
    with AutoCpuExecutor(2) as executor:
        yield executor


def where(task: int) -> tuple[int, int]:
    """Return the task and the process that ran it, after some milliseconds with the lock held."""
    until = time.thread_time() + 0.004
    while time.thread_time() < until:
        sum(range(1000))
    return task, os.getpid()


def held(probe: LockProbe) -> None:
    """Add samples of two threads that wait for the lock, and use one core together."""
    for _ in range(MIN_SAMPLES):
        probe.add_sample(5e-3)
        probe.add_range(2, 0.01, 0.005)


def processes_of(outputs: list[tuple[int, int]]) -> set[int]:
    assert [task for task, _ in outputs] == list(range(len(outputs)))
    return {process for _, process in outputs}


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


@pytest.mark.parametrize(
    ("threads", "waits_s", "busy", "is_held"),
    [
        (2, [5e-3], 0.5, True),  # an idle machine
        (2, [5e-3], 0.2, True),  # other programs took most of the cores
        (8, [2e-3, 20e-3], 0.125, True),
        (2, [1e-4], 1.0, False),  # releases the lock
        (2, [1e-4], 0.5, False),  # releases the lock, and other programs took the cores
        (2, [1e-4, 5e-3], 0.5, False),  # holds the lock half of the time
        (2, [5e-3], 0.9, False),  # another thread holds the lock now and then
        (2, [5e-3], 0.01, False),  # sleeps while another thread holds the lock
        (2, [-1e-3], 0.5, False),  # the clock of the kernel was late
    ],
)
def test_lock_probe_answers(threads: int, waits_s: list[float], busy: float, is_held: bool) -> None:
    probe = LockProbe()
    for number in range(2 * MIN_SAMPLES):
        probe.add_sample(waits_s[number % len(waits_s)])
        probe.add_range(threads, 0.01, 0.01 * busy)
    assert probe.is_held is is_held


def test_lock_probe_needs_samples_and_ranges() -> None:
    probe = LockProbe()
    probe.add_range(2, 0.01, 0.005)
    for _ in range(MIN_SAMPLES - 1):
        probe.add_sample(5e-3)
    assert probe.held_fraction is None
    assert not probe.is_held
    probe.add_sample(5e-3)
    assert probe.held_fraction == 1
    assert probe.is_held


def test_lock_probe_forgets_old_samples() -> None:
    probe = LockProbe()
    held(probe)
    assert probe.is_held
    for _ in range(3 * MAX_SAMPLES):
        probe.add_sample(1e-5)
        probe.add_range(2, 0.01, 0.01)
    assert not probe.is_held
    assert probe.period_s > SAMPLE_PERIOD_S


def test_lock_probe_advises_no_processes_for_waiting(executor: AutoCpuExecutor) -> None:
    manager = StrategyManager.cpu_only(executor)
    manager.execute([0.004] * 120, time.sleep)
    assert executor.probe_of(time.sleep).held_fraction is not None
    assert executor.recommendation(time.sleep) is None


@pytest.mark.parametrize("options", [{}, {"timeout": 60.0}, {"retry": Retry()}, {"on_error": "collect"}])
def test_lock_probe_samples_every_kind_of_batch(executor: AutoCpuExecutor, options: dict[str, Any]) -> None:
    """A busy machine gives no number of samples in a given time, but some."""
    StrategyManager.cpu_only(executor).execute(range(60), where, **options)
    assert executor.probe_of(where).cores is not None


def test_one_thread_says_nothing_of_several() -> None:
    probe = LockProbe()
    queue = Batch(range(4), abs, Telemetry())
    probed: Any = ProbedQueue(queue, probe, lambda: None)
    while (piece := probed.take(DeviceKind.CPU, 1)) is not None:
        probed.finish(piece.start, piece.tasks)
    assert probe.cores is None


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
