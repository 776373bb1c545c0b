"""``map`` and ``starmap`` of a manager, the two names of the number of workers, and what things print."""

from __future__ import annotations

import itertools
import math
import operator
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from accelera.errors import UnfinishedError, UnknownNameError, UnknownOutcomeError
from accelera.execution import (
    AutoCpuExecutor,
    ExecutionStrategy,
    ProcessesExecutor,
    SimulatedExecutor,
    StrategyManager,
    TaskFailure,
    ThreadsExecutor,
    TorchDeviceExecutor,
)
from accelera.testing import FakeGpu, sticky

PATIENCE_S = 300


@pytest.fixture
def manager() -> StrategyManager:
    return StrategyManager.cpu_only(ThreadsExecutor(2))


def test_outputs_come_in_the_order_of_the_arguments(manager: StrategyManager) -> None:
    assert list(manager.map(str, [3, 1, 2])) == ["3", "1", "2"]
    assert list(manager.map(operator.mul, range(5), [2, 3, 4])) == [0, 3, 8]
    assert list(manager.starmap(pow, [(2, 3), (5, 2), [3, 3]])) == [8, 25, 27]
    assert list(manager.map(str, [])) == list(manager.starmap(pow, iter(()))) == []
    assert list(manager.map(str, range(9), chunksize=4)) == [*map(str, range(9))]
    assert sorted(manager.map(abs, range(9), ordered=False)) == list(range(9))


def test_nothing_is_drawn_before_it_is_read_and_no_more_than_fits(manager: StrategyManager) -> None:
    drawn: list[int] = []

    def source() -> Iterator[int]:
        for number in itertools.count():
            drawn.append(number)
            yield number

    outputs = manager.map(operator.neg, source(), window=8)
    assert not drawn
    assert next(outputs) == 0
    assert list(itertools.islice(outputs, 20)) == [-number for number in range(1, 21)]
    assert len(drawn) <= 21 + 8
    del outputs
    pairs = manager.starmap(operator.add, zip(itertools.count(), itertools.count()))
    assert list(itertools.islice(pairs, 3)) == [0, 2, 4]


def test_what_a_task_raises_comes_in_its_place(manager: StrategyManager) -> None:
    outputs = manager.map(operator.truediv, [1, 1, 1], [1, 0, 2])
    assert next(outputs) == 1
    with pytest.raises(ZeroDivisionError) as caught:
        next(outputs)
    assert "task 1 on cpu" in getattr(caught.value, "__notes__", ["task 1 on cpu"])
    arguments: list[Any] = [(1, 1), (1, 0), 7]
    collected = list(manager.starmap(operator.truediv, arguments, on_error="collect"))
    assert collected[0] == 1
    assert [type(each.error) for each in collected[1:]] == [ZeroDivisionError, TypeError]
    assert list(manager.map(operator.truediv, [1, 1, 1], [1, 0, 2], on_error="skip")) == [1, 0.5]


@pytest.mark.parametrize("how", [{}, {"cancel": threading.Event()}])
def test_an_output_must_be_there_in_time(manager: StrategyManager, how: dict[str, Any]) -> None:
    go = threading.Event()

    def waits(task: int) -> int:
        if task > 3:
            go.wait(PATIENCE_S)
        return task

    outputs = manager.map(waits, range(9), timeout=0.3, **how)
    assert list(itertools.islice(outputs, 4)) == [0, 1, 2, 3]
    with pytest.raises(TimeoutError, match=r"\[stream\] the next output was not there after") as caught:
        next(outputs)
    assert isinstance(caught.value, UnfinishedError)
    assert caught.value.result.task_count == 4
    go.set()
    assert list(manager.map(waits, range(9), timeout=PATIENCE_S)) == list(range(9))
    with manager.as_executor(2) as executor:
        assert list(executor.map(waits, range(9), buffersize=2, timeout=PATIENCE_S)) == list(range(9))


def test_a_timeout_of_the_source_or_a_task_is_its_own(manager: StrategyManager) -> None:
    def times_out(task: int) -> int:
        raise TimeoutError("the task's")

    def source() -> Iterator[int]:
        yield 1
        raise TimeoutError("the source's")

    with pytest.raises(TimeoutError, match="the task's"):
        list(manager.map(times_out, [1], timeout=PATIENCE_S))
    with pytest.raises(TimeoutError, match="the source's"):
        list(manager.map(abs, source(), timeout=PATIENCE_S))


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda each: each.map(3, [1]), TypeError, r"\[map\] 3 \(int\) cannot be called"),
        (lambda each: each.map(abs), TypeError, r"\[map\] no tasks: give at least one iterable"),
        (lambda each: each.map(abs, 3), TypeError, r"\[map\] 3 \(int\): give a list"),
        (lambda each: each.map(abs, [1], [2], 3), TypeError, r"\[map\] 3 \(int\): give a list"),
        (lambda each: each.map(abs, [1], chunksize=0), ValueError, r"\[map\] chunksize=0: give at least 1"),
        (lambda each: each.map(abs, [1], chunksize=1.5), TypeError, r"chunksize=1.5 \(float\)"),
        (lambda each: each.map(abs, [1], timeout="1s"), TypeError, r"\[stream\] timeout='1s'"),
        (lambda each: each.map(abs, [1], timeout=math.nan), ValueError, r"\[stream\] timeout=nan"),
        (lambda each: each.map(abs, [1], on_error="skpi"), UnknownNameError, "did you mean 'skip'"),
        (lambda each: each.map(abs, [1], rerun="nver"), UnknownNameError, "did you mean 'never'"),
        (lambda each: each.map(abs, [1], fallback="all"), TypeError, "unexpected keyword argument"),
        (lambda each: each.starmap(None, [(1,)]), TypeError, r"\[starmap\] None"),
        (lambda each: each.starmap(pow, 3), TypeError, r"\[starmap\] 3 \(int\): give a list"),
        (lambda each: each.starmap(pow, [], chunksize=-1), ValueError, r"\[starmap\] chunksize=-1"),
        (lambda each: each.stream([1], abs, rerun="once"), UnknownNameError, "rerun"),
        (lambda each: each.stream([1], abs, timeout=-1), ValueError, r"\[stream\] timeout=-1"),
        (lambda each: each.stream([1], abs, retry=3), TypeError, r"\[stream\] retry=3"),
    ],
)
def test_what_cannot_be_is_refused_at_once(
    manager: StrategyManager, call: Callable[[StrategyManager], Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        call(manager)


@pytest.mark.parametrize("rerun", ["on_failure", "freely", "never"])
def test_tasks_of_a_stream_that_are_lost_run_again_only_where_they_may(rerun: Any) -> None:
    seen: Counter[int] = Counter()
    lock = threading.Lock()

    def noted(task: int) -> int:
        with lock:
            seen[task] += 1
        return -task

    gpu = FakeGpu(faults={0: sticky}, before_fault=0.5)
    manager = StrategyManager(ThreadsExecutor(2), gpu, ExecutionStrategy.GpuOnly, learn=False)
    outputs: list[Any] = list(manager.map(noted, range(40), rerun=rerun, on_error="collect"))
    lost = [output for output in outputs if isinstance(output, TaskFailure)]
    if rerun == "never":
        assert lost
        assert {type(each.error) for each in lost} == {UnknownOutcomeError}
        assert max(seen.values()) == 1
    else:
        assert outputs == [-task for task in range(40)]
        assert max(seen.values()) == 2


@pytest.mark.parametrize("make", [AutoCpuExecutor, ThreadsExecutor, ProcessesExecutor])
def test_workers_of_an_executor_are_checked(make: Any) -> None:
    name = make.__name__
    assert make(workers=3).workers == make(3).workers == 3
    assert repr(make(workers=3)) == f"{name}(3)"
    with pytest.raises(ValueError, match=rf"\[{name}\] workers=0: give at least 1"):
        make(workers=0)
    with pytest.raises(TypeError, match=rf"\[{name}\] workers='2' \(str\): give a whole number"):
        make(workers="2")


def test_workers_of_a_manager_are_checked() -> None:
    manager = StrategyManager.auto(workers=3, strategy="cpu")
    with manager.as_executor(workers=1) as executor:
        assert list(executor.map(abs, [-1, -2])) == [1, 2]
    for call in (manager.as_executor, StrategyManager.auto):
        with pytest.raises(ValueError, match="workers=-1: give at least 1"):
            call(workers=-1)


def test_what_things_print_is_short(manager: StrategyManager) -> None:
    assert repr(SimulatedExecutor("4MiB")) == "SimulatedExecutor('4.0 MiB', name='sim')"
    assert repr(TorchDeviceExecutor("cpu")) == "TorchDeviceExecutor('cpu')"
    assert repr(manager) == "StrategyManager(cpu='cpu', strategy=Auto)"
    both = StrategyManager(None, FakeGpu(), ExecutionStrategy.Hybrid(70, 30))
    assert (
        repr(both)
        == f"StrategyManager(cpu='cpu', gpu={both.devices[1]!r}, strategy=Hybrid(70% GPU, 30% CPU))"
    )

    def fails(task: int) -> bytes:
        if task == 7:
            raise ValueError(task)
        return bytes(10_000)

    result = manager.execute(range(500), fails, on_error="collect")
    assert repr(result).startswith("<ExecutionResult: 500 outputs, CpuOnly, ")
    assert repr(result).endswith("s, 1 failed, cpu: 500 tasks>")
    stopped = threading.Event()
    stopped.set()
    cancelled = manager.execute(range(5), fails, cancel=stopped)
    assert "cancelled, 5 not done" in repr(cancelled)
    stream = manager.stream(range(9), fails, on_error="skip")
    assert repr(stream) == "<TaskStream: 0 tasks done, 0 of them failed, not begun>"
    list(stream)
    assert repr(stream) == "<TaskStream: 9 tasks done, 1 of them failed, exhausted>"
