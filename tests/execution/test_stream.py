"""Streams: every output once, in bounded memory, however long they are."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelera.execution import (
    ExecutionStrategy,
    StrategyManager,
    TaskFailure,
    ThreadsExecutor,
    WorkloadProfile,
)
from accelera.execution.streaming.window import Window, size_of
from accelera.testing._internal import BridgeCpu, BridgeGpu
from tests.execution.stand_ins import Alive, Megabyte
from tests.execution.test_manager import odd_fails, square


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(0, 300),
    window=st.one_of(st.none(), st.integers(1, 40)),
    ordered=st.booleans(),
    workers=st.integers(1, 4),
    room=st.sampled_from([None, 0, 1, 7, 1000]),
)
def test_every_output_comes_once(
    count: int, window: int | None, ordered: bool, workers: int, room: int | None
) -> None:
    gpu = None if room is None else BridgeGpu(room)
    manager = StrategyManager(ThreadsExecutor(workers), gpu)
    pairs = list(manager.stream(iter(range(count)), square, ordered=ordered, window=window))
    assert sorted(pairs) == [(number, number * number) for number in range(count)]
    assert not ordered or pairs == sorted(pairs)


def test_no_more_than_the_window_is_drawn_ahead() -> None:
    drawn, before = 0, set(threading.enumerate())

    def numbers() -> Iterator[int]:
        nonlocal drawn
        for number in itertools.count():
            drawn += 1
            yield number

    for index, output in StrategyManager.cpu_only().stream(numbers(), square, window=16):
        assert output == index * index
        assert drawn <= index + 1 + 16
        if index == 3000:
            break
    for thread in set(threading.enumerate()) - before:
        thread.join(300)
        assert not thread.is_alive(), "nothing is drawn once nobody asks"


def test_a_window_in_bytes_bounds_what_waits() -> None:
    alive = Alive()
    manager = StrategyManager.cpu_only(ThreadsExecutor(2))
    profile = WorkloadProfile(0, memory_per_task=1 << 20)
    stream = manager.stream(range(200), lambda _: Megabyte(alive), profile, window="8MiB", ordered=False)
    for _ in stream:
        time.sleep(0.0005)
    assert 2 <= alive.peak <= 10, "the window, the one just taken and the one before it"


@pytest.mark.parametrize("ordered", [True, False])
def test_errors_in_a_stream(ordered: bool) -> None:
    manager = StrategyManager.cpu_only()
    with pytest.raises(ValueError, match="is odd"):
        list(manager.stream(range(6), odd_fails, ordered=ordered))
    skipped = manager.stream(range(6), odd_fails, ordered=ordered, on_error="skip")
    assert sorted(skipped) == [(0, 0), (2, 2), (4, 4)]
    collected = dict(manager.stream(range(3), odd_fails, ordered=ordered, on_error="collect"))
    assert isinstance(collected[1], TaskFailure)
    assert (collected[0], collected[2]) == (0, 2)


@pytest.mark.parametrize("cpu", [None, BridgeCpu()])
def test_an_iterator_that_raises_ends_the_stream_after_what_it_gave(cpu: BridgeCpu | None) -> None:
    def breaks() -> Iterator[int]:
        yield from range(50)
        raise KeyError("the source is gone")

    seen: list[int] = []
    with pytest.raises(KeyError, match="the source is gone"):
        for index, _ in StrategyManager.cpu_only(cpu).stream(breaks(), square):
            seen.append(index)
    assert seen == list(range(50))


def test_windows_that_cannot_be() -> None:
    for window in (0, -5, "0"):
        with pytest.raises(ValueError, match=r"\[stream\] "):
            StrategyManager.cpu_only().stream(range(3), square, window=window)


def test_sizes_of_outputs() -> None:
    assert size_of(np.zeros(1000)) == 8000
    assert size_of([np.zeros(1000), np.zeros(10)]) >= 8080
    assert size_of({"a": np.zeros(1000)}) >= 8000
    assert size_of("abc") < 100


class Unwilling:
    @property
    def nbytes(self) -> int:
        raise RuntimeError("not defined for sparse tensors")


def test_a_look_at_a_size_never_harms_a_stream() -> None:
    assert size_of([Unwilling(), np.zeros(1000)]) >= 8000
    manager, tasks = StrategyManager.cpu_only(), [Unwilling() for _ in range(5)]
    outputs = [output for _, output in manager.stream(tasks, lambda task: task, window="1MiB")]
    assert outputs == tasks


def test_a_window_always_lets_one_through() -> None:
    window = Window("1MiB", memory_per_task=10 << 20)
    assert window.room == 1
    window.draw(1)
    assert window.room <= 0


def test_other_coroutines_go_on_meanwhile() -> None:
    ticked = threading.Event()

    def waiting(number: int) -> tuple[bool, int]:
        return ticked.wait(300), square(number)

    async def both() -> list[tuple[bool, int]]:
        slow = asyncio.create_task(StrategyManager.cpu_only().aexecute(range(4), waiting))
        for _ in range(4):
            await asyncio.sleep(0.001)
        assert not slow.done()
        ticked.set()
        return (await slow).outputs

    assert asyncio.run(both()) == [(True, 0), (True, 1), (True, 4), (True, 9)]


def test_a_cancelled_coroutine_begins_no_further_task() -> None:
    begun: list[int] = []
    go = threading.Event()

    def waits(number: int) -> None:
        begun.append(number)
        go.wait(300)

    async def cancelled() -> None:
        running = asyncio.create_task(
            StrategyManager.cpu_only(ThreadsExecutor(1)).aexecute(range(500), waits)
        )
        while not begun:
            await asyncio.sleep(0.01)
        running.cancel()
        try:
            await running
        finally:
            go.set()

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    assert begun == [0]


def test_as_an_executor_of_the_standard_library() -> None:
    manager = StrategyManager(None, BridgeGpu(), ExecutionStrategy.Auto)
    with manager.as_executor(2) as executor:
        assert isinstance(executor, concurrent.futures.Executor)
        futures = [executor.submit(pow, 2, number) for number in range(10)]
        assert [each.result() for each in futures] == [2**number for number in range(10)]
        assert list(executor.map(divmod, range(7, 17), [3] * 5)) == [divmod(n, 3) for n in range(7, 12)]
        assert list(executor.map(square, range(5), timeout=600)) == [0, 1, 4, 9, 16]
        failing = executor.submit(odd_fails, 3)
        assert isinstance(failing.exception(), ValueError)
    with pytest.raises(RuntimeError, match="shutdown"):
        executor.submit(square, 1)


def test_submitted_calls_can_be_cancelled() -> None:
    begun, go = threading.Event(), threading.Event()

    def waiting() -> bool:
        begun.set()
        return go.wait(300)

    executor = StrategyManager.cpu_only().as_executor(1)
    first, second = executor.submit(waiting), executor.submit(square, 2)
    assert begun.wait(300)
    executor.shutdown(wait=False, cancel_futures=True)
    go.set()
    assert first.result() is True
    assert second.cancelled()


def test_a_task_that_raises_stop_iteration_does_not_end_the_stream_in_silence() -> None:
    def stops(task: int) -> int:
        if task == 1:
            raise StopIteration(task)
        return task

    outputs = StrategyManager.cpu_only().stream(range(3), stops)
    assert next(outputs) == (0, 0)
    with pytest.raises(RuntimeError, match="task 1 on cpu raised StopIteration") as raised:
        next(outputs)
    assert isinstance(raised.value.__cause__, StopIteration)
