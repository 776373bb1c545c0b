"""A GPU that is not there: its memory, its time, its failures, and what a manager makes of them."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelera.errors import DeviceError, DeviceMemoryError, UnfinishedError
from accelera.execution import (
    ExecutionStrategy,
    GpuExecutor,
    SimulatedExecutor,
    StrategyManager,
    ThreadsExecutor,
    WorkloadProfile,
    kernel,
)
from accelera.execution._internal import SimulatedReport
from accelera.execution.executors.simulated import Fault, InjectedFaults
from accelera.execution.faults.classify import FailureKind, kind_of
from tests.execution.stand_ins import square

GPU_ONLY = ExecutionStrategy.GpuOnly


def error_of(gpu: SimulatedExecutor, count: int = 1) -> Exception | None:
    try:
        gpu.execute_batch(range(count), square)
    except Exception as error:
        return error
    return None


def test_it_is_an_executor_of_the_seed_with_real_outputs() -> None:
    gpu = SimulatedExecutor()
    assert isinstance(gpu, GpuExecutor)
    assert (gpu.name, gpu.is_available(), gpu.memory_available()) == ("sim", True, 256 << 20)
    assert gpu.execute_batch([1, 2, 3], square) == [1, 4, 9]
    assert gpu.report() == SimulatedReport(batches=1, tasks=3, failures=0, peak_bytes=0, busy_s=0.0)


def test_a_batched_form_gets_everything_at_once() -> None:
    seen: list[tuple[int, str]] = []
    squared = kernel(square)

    @squared.gpu_batch
    def _(tasks: Sequence[int], device: str) -> list[int]:
        seen.append((len(tasks), device))
        return [task * task for task in tasks]

    result = StrategyManager(None, SimulatedExecutor(), GPU_ONLY).execute(range(30), squared)
    assert result.outputs == [task * task for task in range(30)]
    assert seen == [(30, "cpu")]


@pytest.mark.parametrize("cost", [100, "100 B", lambda task: 100])
def test_memory_is_counted_and_bounded(cost: Any) -> None:
    gpu = SimulatedExecutor(1000, memory_per_task=cost)
    free: list[int] = []
    gpu.execute_batch(range(4), lambda task: free.append(gpu.memory_available()))
    assert free == [600] * 4
    assert gpu.memory_available() == 1000
    with pytest.raises(DeviceMemoryError, match=r"\[sim\] out of memory.* 1.1 KiB at once, and 1000 B of"):
        gpu.execute_batch(range(11), square)
    assert gpu.memory_available() == 1000
    assert (gpu.report().peak_bytes, gpu.report().failures) == (400, 1)


def test_memory_comes_back_after_an_error_of_the_users() -> None:
    gpu = SimulatedExecutor(1000, memory_per_task=100)
    with pytest.raises(ZeroDivisionError):
        gpu.execute_batch([1, 0], lambda task: 1 // task)
    assert (gpu.memory_available(), gpu.report().tasks, gpu.report().failures) == (1000, 0, 0)


def test_time_is_added_up_without_passing() -> None:
    gpu = SimulatedExecutor(speed=10, launch_s=100)
    began = time.perf_counter()
    gpu.execute_batch(range(30), square)
    assert time.perf_counter() - began < 50
    assert gpu.report().busy_s == pytest.approx(103)


def test_time_passes_when_it_is_to() -> None:
    gpu = SimulatedExecutor(speed=200, launch_s=0.02, sleeps=True)
    began = time.perf_counter()
    gpu.execute_batch(range(4), square)
    assert time.perf_counter() - began >= 0.04 - 1e-3


@pytest.mark.parametrize(
    ("fault", "kind", "error"),
    [
        ("oom_at", FailureKind.MEMORY, DeviceMemoryError),
        ("fail_at", FailureKind.TRANSIENT, DeviceError),
        ("break_at", FailureKind.STICKY, DeviceError),
    ],
)
def test_the_nth_micro_batch_fails_as_it_is_told(
    fault: str, kind: FailureKind, error: type[Exception]
) -> None:
    gpu = SimulatedExecutor(**{fault: [2]})  # type: ignore[arg-type]
    met = [error_of(gpu) for _ in range(3)]
    assert met[0] is None
    assert type(met[1]) is error
    assert kind_of(met[1]) is kind  # type: ignore[arg-type]
    assert (met[2] is None) == (fault != "break_at")


def test_a_broken_device_stays_so_until_it_is_started_anew() -> None:
    gpu = SimulatedExecutor(break_at=2)
    assert [error_of(gpu) is None for _ in range(4)] == [True, False, False, False]
    gpu.restart()
    assert error_of(gpu) is None


def test_a_micro_batch_hangs_until_the_device_is_started_anew() -> None:
    gpu, met = SimulatedExecutor(hang_at=1), list[Exception | None]()
    thread = threading.Thread(target=lambda: met.append(error_of(gpu)), daemon=True)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    gpu.restart()
    thread.join(300)
    assert kind_of(met[0]) is FailureKind.STICKY  # type: ignore[arg-type]


def test_the_same_seed_fails_at_the_same_places() -> None:
    def pattern(seed: int) -> list[Any]:
        gpu = SimulatedExecutor(oom_probability=0.3, fail_probability=0.2, seed=seed)
        return [type(error_of(gpu)) for _ in range(200)]

    assert pattern(1) == pattern(1) != pattern(2)
    assert 30 < pattern(1).count(DeviceMemoryError) < 90
    assert 15 < pattern(1).count(DeviceError) < 65


@given(ordinals=st.sets(st.integers(1, 30)))
def test_ordinals_are_of_all_micro_batches(ordinals: set[int]) -> None:
    faults = InjectedFaults({Fault.MEMORY: ordinals, Fault.HANG: range(1, 31)}, {}, 0)
    met = [faults.next() for _ in range(31)]
    assert [count for count, _ in met] == list(range(1, 32))
    assert {count for count, fault in met if fault is Fault.MEMORY} == ordinals
    assert met[-1] == (31, None)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"speed": 0}, "must be above 0"),
        ({"speed": math.nan}, "must be above 0"),
        ({"launch_s": -1}, "launch_s from 0"),
        ({"launch_s": math.nan}, "launch_s from 0"),
        ({"oom_probability": 2}, "between 0 and 1"),
        ({"oom_probability": 0.6, "fail_probability": 0.6}, "so does their sum"),
        ({"memory": "lots"}, "is not a size"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SimulatedExecutor(**options)


def test_a_manager_finds_what_fits() -> None:
    gpu = SimulatedExecutor("1000 B", memory_per_task=30)
    result = StrategyManager(None, gpu, GPU_ONLY).execute(range(500), square)
    assert result.outputs == [number * number for number in range(500)]
    assert not result.fallback_occurred
    assert 0.9 * 990 <= gpu.report().peak_bytes <= 990


def test_a_profile_that_knows_the_memory_saves_the_search() -> None:
    gpu = SimulatedExecutor("1000 B", memory_per_task=30)
    result = StrategyManager(None, gpu, GPU_ONLY).execute(range(330), square, WorkloadProfile(330, 30))
    assert (result.oom_splits, gpu.report().batches) == (0, 10)


def test_tasks_of_many_sizes_all_come_to_an_end() -> None:
    gpu = SimulatedExecutor(1000, memory_per_task=lambda task: task)
    result = StrategyManager(ThreadsExecutor(2), gpu, ExecutionStrategy.Hybrid()).execute(
        [5, 900, 40, 2000, 300] * 30, square
    )
    assert result.outputs == [square(task) for task in [5, 900, 40, 2000, 300] * 30]
    assert gpu.report().peak_bytes <= 1000


@pytest.mark.parametrize("strategy", [GPU_ONLY, ExecutionStrategy.Hybrid(), ExecutionStrategy.Hybrid(60, 40)])
@pytest.mark.parametrize("seed", range(5))
def test_whatever_fails_the_outputs_are_right(strategy: ExecutionStrategy, seed: int) -> None:
    gpu = SimulatedExecutor(
        2000, memory_per_task=10, oom_probability=0.2, fail_probability=0.2, break_at=20, seed=seed
    )
    result = StrategyManager(None, gpu, strategy).execute(range(700), square)
    assert result.outputs == [number * number for number in range(700)]


def test_a_device_that_hangs_does_not_hold_a_batch_with_a_timeout() -> None:
    gpu = SimulatedExecutor(hang_at=1)
    manager = StrategyManager(None, gpu, ExecutionStrategy.Hybrid(50, 50))
    with pytest.raises(UnfinishedError) as late:
        manager.execute(range(20), square, timeout=1.0)
    assert late.value.result.outputs[10:] == [number * number for number in range(10, 20)]
    gpu.restart()
