"""What cannot be meant is refused at once, and told in words: what was given, and what to give."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from accelera.errors import DeviceError, TaskTooLargeError, UnknownNameError
from accelera.execution import (
    ExecutionStrategy,
    HardwareCapabilities,
    Observer,
    ProcessesExecutor,
    PrometheusObserver,
    StrategyManager,
    SystemLoad,
    ThreadsExecutor,
    WorkloadProfile,
    kernel,
)
from accelera.testing import FakeGpu
from accelera.testing._internal import BridgeGpu

MIB = 1 << 20
manager: Any = StrategyManager
"""Called in ways that a type checker would refuse."""


class Gpu(BridgeGpu):
    """Notes how many tasks it is given at once; has a mebibyte free, and says whatever ``returns`` makes."""

    def __init__(self, returns: Callable[[list[Any]], Any] = list) -> None:
        super().__init__()
        self._returns = returns

    def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> Any:
        return self._returns(super().execute_batch(tasks, process_fn))

    def memory_available(self) -> int:
        return MIB


class WithoutMemory:
    """Lacks what a GPU must tell."""

    def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> list[Any]:
        return [process_fn(task) for task in tasks]

    def is_available(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((None, FakeGpu), r"gpu=FakeGpu: a class.*FakeGpu\(\)"),
        ((ThreadsExecutor,), r"cpu=ThreadsExecutor: a class"),
        ((None, 5), r"gpu=5 \(int\) has no execute_batch"),
        ((5,), r"cpu=5 \(int\) has no execute_batch"),
        ((None, WithoutMemory()), r"has no memory_available\(\)"),
        ((FakeGpu(), ThreadsExecutor(1)), "the CPU's executor first"),
        ((None, ExecutionStrategy.GpuOnly), "strategy= says where"),
        ((None, None, 5), r"5 \(int\) is no strategy.*'hybrid'"),
        ((None, None, None), "is no strategy"),
    ],
)
def test_what_is_no_executor_or_strategy_is_refused(given: tuple[Any, ...], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        manager(*given)


def test_a_strategy_may_be_named_as_in_auto() -> None:
    assert manager(None, None, "gpu").strategy is ExecutionStrategy.GpuOnly
    with pytest.raises(UnknownNameError, match="'gpus'"):
        manager(None, None, "gpus")
    with pytest.raises(TypeError, match="is no strategy"):
        manager.auto(strategy=5)


@pytest.mark.parametrize("observers", [[5], Observer(), [Observer], 5])
def test_what_is_no_observer_is_refused(observers: Any) -> None:
    with pytest.raises(TypeError, match="give a list of observers"):
        manager(None, observers=observers)


@pytest.mark.parametrize(
    ("option", "value", "kind", "words"),
    [
        ("retry", 3, TypeError, r"retry=3 \(int\): give a Retry"),
        ("timeout", "1s", TypeError, r"timeout='1s' \(str\): give seconds"),
        ("timeout", True, TypeError, "give seconds"),
        ("timeout", math.nan, ValueError, "timeout=nan: seconds cannot be negative, nor nan"),
        ("cancel", True, TypeError, r"give a threading\.Event"),
        ("progress", 5, TypeError, "give a function"),
        ("profile", {"task_count": 3}, TypeError, "give a WorkloadProfile"),
        ("fallback", None, UnknownNameError, "no fallback is called None; known: all"),
        ("on_error", 5, UnknownNameError, "no on_error is called 5"),
    ],
)
def test_an_option_of_another_kind_is_refused(
    option: str, value: Any, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        manager(None).execute(range(3), abs, **{option: value})


def test_streams_and_explanations_refuse_as_well() -> None:
    with pytest.raises(TypeError, match="give a Retry"):
        manager(None).stream(range(3), abs, retry=3)
    with pytest.raises(TypeError, match="give a WorkloadProfile"):
        manager(None).explain({"task_count": 3})


@pytest.mark.parametrize("window", [2.5, math.nan, True, b"1MiB", [1]])
def test_a_window_is_a_whole_number_or_text(window: Any) -> None:
    with pytest.raises(TypeError, match=r"\[stream\] window=.*: give a whole number of tasks, or memory"):
        manager(None).stream(range(3), abs, window=window)
    assert list(manager(None).stream(range(3), abs, window=np.int64(2))) == [(0, 0), (1, 1), (2, 2)]
    assert len(list(manager(None).stream(range(3), abs, window=10**30))) == 3


def test_a_coroutine_refuses_a_token_that_is_none() -> None:
    with pytest.raises(TypeError, match=r"cancel=5 \(int\): give a threading\.Event"):
        asyncio.run(manager(None).aexecute([1], abs, cancel=5))


def test_what_cannot_be_called_is_no_function() -> None:
    for call in (manager(None).execute, manager(None).stream):
        with pytest.raises(TypeError, match=r"5 \(int\) cannot be called: give a function of one task"):
            call(range(3), 5)
    with pytest.raises(TypeError, match=r"\[kernel\] 5"):
        kernel(5)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"\[gpu_batch\] 5"):
        kernel(abs).gpu_batch(5)  # type: ignore[type-var]


@pytest.mark.parametrize("make", [ThreadsExecutor, ProcessesExecutor])
def test_workers_are_a_whole_number(make: Any) -> None:
    with pytest.raises(TypeError, match=r"workers='x' \(str\): give a whole number"):
        make("x")
    with pytest.raises(ValueError, match="workers=0: give at least 1"):
        make(0)
    with pytest.raises(TypeError, match="whole number"):
        manager.auto(workers="x")
    with pytest.raises(TypeError, match="whole number"):
        manager(None).as_executor("x")


@pytest.mark.parametrize("returns", [dict.fromkeys, set, lambda outputs: "a" * len(outputs)])
def test_outputs_come_in_something_with_an_order(returns: Callable[[list[Any]], Any]) -> None:
    with pytest.raises(DeviceError, match=r"got 60 tasks and returned (dict|set|str)"):
        manager(None, Gpu(returns), "gpu").execute(range(60), abs, fallback="never")


def test_profiles_have_whole_counts_and_shares() -> None:
    profile: Any = WorkloadProfile
    with pytest.raises(
        TypeError, match=r"memory_per_task='3MiB': give a whole number; parse_bytes\('3MiB'\)"
    ):
        profile(3, memory_per_task="3MiB")
    with pytest.raises(TypeError, match=r"task_count=2\.5"):
        profile(2.5)
    with pytest.raises(TypeError, match="complexity='high'"):
        profile(3, complexity="high")


def test_loads_and_capabilities_are_possible() -> None:
    with pytest.raises(ValueError, match=r"gpu_memory_pressure=81: a share.*0\.81"):
        SystemLoad(gpu_memory_pressure=81)
    with pytest.raises(ValueError, match=r"cpu_cores=0.*at least one core"):
        HardwareCapabilities(cpu_cores=0)


async def waits(task: int) -> int:
    return task


@pytest.mark.parametrize("run", ["execute", "stream"])
def test_a_function_that_must_be_awaited_is_refused(run: str) -> None:
    with pytest.raises(TypeError, match=rf"\[{run}\].*is async.*asyncio.run"):
        getattr(manager(None), run)(range(3), waits)


def test_tasks_must_be_something_to_go_through() -> None:
    with pytest.raises(TypeError, match=r"\[execute\] tasks=5 \(int\): give a list"):
        manager(None).execute(5, abs)  # type: ignore[arg-type]

    def broken() -> Iterator[int]:
        yield len(7)  # type: ignore[arg-type]

    with pytest.raises(TypeError, match="has no len"):
        manager(None).execute(broken(), abs)


def test_two_executors_have_two_names() -> None:
    with pytest.raises(ValueError, match=r"both executors are called 'cpu'.*another `name`"):
        StrategyManager(None, FakeGpu(name="cpu"))


def test_metrics_need_a_registry() -> None:
    with pytest.raises(TypeError, match="registry=5"):
        PrometheusObserver(5)  # type: ignore[arg-type]


def test_without_a_gpu_a_budget_bounds_all_tasks_as_in_auto() -> None:
    small, profile = manager(None, budget="1KiB"), WorkloadProfile(3, memory_per_task=MIB)
    with pytest.raises(TaskTooLargeError, match="1,048,576 bytes"):
        small.execute(range(3), abs, profile)
    with pytest.raises(TaskTooLargeError, match="1,048,576 bytes"):
        small.stream(range(3), abs, profile)
    two = manager(ThreadsExecutor(8), budget=2 * MIB)
    assert "2 at once on the CPU" in two.explain(profile).reasons[-1]
    assert two.execute(range(3), abs, profile).outputs == [0, 1, 2]


@pytest.mark.parametrize("make", [lambda **options: manager(None, **options), manager.auto])
def test_a_budget_of_nothing_is_refused(make: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="0 leaves no memory"):
        make(budget=0)


def test_a_simulated_device_without_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="'0' leaves no memory"):
        manager.auto(device="sim:0")


def test_tasks_that_do_not_fit_even_alone_are_tried_one_by_one() -> None:
    gpu, profile = Gpu(), WorkloadProfile(60, memory_per_task=1 << 30)
    one = manager(None, gpu, "gpu", learn=False)
    assert one.execute(range(60), abs, profile).outputs == list(range(60))
    assert gpu.batches == [1] * 60
    assert "a task of 1.0 GiB is more than the GPU has free" in one.explain(profile).reasons[-1]


def test_never_the_cpu_means_that_there_must_be_a_gpu() -> None:
    with pytest.raises(DeviceError, match="the manager has no GPU"):
        manager(None, None, "gpu").execute(range(3), abs, fallback="never")
    assert manager(None, None, "gpu").execute(range(3), abs).outputs == [0, 1, 2]
    assert manager(None).execute(range(3), abs, fallback="never").outputs == [0, 1, 2]


class _Fetcher:
    async def __call__(self, page: int) -> str:
        return str(page)

    async def method(self, page: int) -> str:
        return str(page)


async def _pages(page: int) -> AsyncIterator[int]:
    yield page


async def _fetch(page: int, suffix: str = "") -> str:
    return str(page) + suffix


@pytest.mark.parametrize(
    "function",
    [
        _fetch,
        functools.partial(_fetch, suffix="!"),
        functools.partial(functools.partial(_fetch), suffix="!"),
        _Fetcher(),
        _Fetcher().method,
        functools.partial(_Fetcher()),
        _pages,
    ],
)
def test_async_functions_are_refused_in_any_form(function: Any) -> None:
    with pytest.raises(TypeError, match="async"):
        StrategyManager.cpu_only().execute([1, 2], function)
