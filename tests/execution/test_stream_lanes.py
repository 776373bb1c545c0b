"""Who works on a stream: lanes that leave too soon, GPUs left alone; and what is left when it is over."""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from accelera.errors import DeviceError
from accelera.execution import ExecutionStrategy, Observer, StrategyManager, ThreadsExecutor
from accelera.execution.observability.telemetry import Telemetry
from accelera.execution.streaming.queue import ReorderBuffer, StreamQueue
from accelera.execution.streaming.stream import StreamThreads
from accelera.execution.streaming.window import Window
from accelera.execution.tasks.queue import DeviceKind, TaskQueue
from accelera.testing import FakeGpu, sticky
from tests.execution.test_stream_sources import PATIENCE_S, within_patience

GPU_ONLY = ExecutionStrategy.GpuOnly


class Lazy:
    """A lane that leaves after one piece, whatever is left."""

    name = "lazy"

    def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> list[Any]:
        return [process_fn(task) for task in tasks]

    def work(self, work: TaskQueue, *, caller: bool) -> None:
        piece = work.take(DeviceKind.CPU, 1)
        if piece is not None:
            work.finish(piece.start, piece.tasks)


@pytest.mark.parametrize(
    ("gpu", "strategy"),
    [(None, "cpu"), (FakeGpu(faults=lambda call: sticky()), "gpu"), (FakeGpu(max_batch=0), "hybrid")],
)
def test_a_lane_that_leaves_work_behind_is_told_so(gpu: FakeGpu | None, strategy: Any) -> None:
    stream = StrategyManager(Lazy(), gpu, strategy, learn=False).stream(itertools.count(), abs)

    def take_all() -> None:
        with pytest.raises(DeviceError, match="returned although tasks were left"):
            for _ in stream:
                pass

    within_patience(lambda: take_all() or True)
    assert stream.report().ended_by == "error"


def test_the_end_waits_for_a_lane_that_another_has_just_called() -> None:
    feed = StreamQueue(iter(range(3)), abs, Telemetry(), Window(8), ReorderBuffer())
    calling, done, go = threading.Event(), threading.Event(), threading.Event()

    class Caller(Lazy):
        def work(self, work: TaskQueue, *, caller: bool) -> None:
            calling.set()
            go.wait(PATIENCE_S)
            feed.request_cpu_lane()

    class Called(Lazy):
        def work(self, work: TaskQueue, *, caller: bool) -> None:
            assert not done.wait(0.1)
            done.set()

    background = StreamThreads(feed, [Caller()], then=Called())
    background.start()
    assert calling.wait(PATIENCE_S)
    feed.stop()
    waiting = threading.Thread(target=background.wait)
    waiting.start()
    go.set()
    waiting.join(PATIENCE_S)
    assert done.is_set()


class Fallbacks(Observer):
    """Counts the tasks that went to the CPU."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def on_fallback(self, device: str, task_count: int, error: BaseException) -> None:
        with self._lock:
            self.count += task_count


@pytest.mark.parametrize("available", [False, True])
def test_what_the_cpu_does_for_a_gpu_that_is_left_alone_is_a_fallback(available: bool) -> None:
    told, gpu = Fallbacks(), FakeGpu(faults=lambda call: sticky())
    gpu.available = available
    manager = StrategyManager(ThreadsExecutor(2), gpu, GPU_ONLY, learn=False, observers=[told])
    stream = manager.stream(range(300), abs, window=16)
    assert len(list(stream)) == 300
    report = stream.report()
    assert report.fallback_occurred
    assert told.count == 300
    words = "illegal memory access" if available else "cannot be used now"
    assert words in str(report.device_errors[0])


class Thing:
    """What a weak reference can be had of."""


def test_a_stream_that_is_over_holds_nothing_though_it_is_held() -> None:
    made: list[weakref.ref[Thing]] = []
    enough = threading.Event()

    def make(number: int) -> Thing:
        thing = Thing()
        made.append(weakref.ref(thing))
        if number == 20:
            enough.set()
        return thing

    stream = StrategyManager.cpu_only(ThreadsExecutor(1)).stream(itertools.count(), make)
    next(stream)
    assert enough.wait(PATIENCE_S)
    stream.close()
    assert stream.report().task_count >= 20
    assert [each for each in made if each() is not None] == []


def test_what_was_left_behind_does_not_change_the_report() -> None:
    began, go, back, cancel = (threading.Event() for _ in range(4))
    others = set(threading.enumerate())

    def hangs(number: int) -> int:
        if number == 1:
            began.set()
            go.wait(PATIENCE_S)
            back.set()
        return number

    stream = StrategyManager.cpu_only(ThreadsExecutor(1)).stream(range(3), hangs, window=1, cancel=cancel)
    assert next(stream) == (0, 0)
    assert began.wait(PATIENCE_S)
    ours = set(threading.enumerate()) - others
    cancel.set()
    assert list(stream) == []
    before = stream.report()
    go.set()
    assert back.wait(PATIENCE_S)
    for thread in ours:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    assert stream.report() == before
    assert (before.task_count, before.ended_by) == (1, "cancelled")


def test_an_interrupted_close_is_told_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(background: StreamThreads) -> None:
        raise KeyboardInterrupt

    manager = StrategyManager.cpu_only()
    stream = manager.stream(itertools.count(), abs)
    next(stream)
    monkeypatch.setattr(StreamThreads, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stream.close()
    assert stream.report().ended_by == "closed"
    assert manager.stats().executions == 1


class Slow(Observer):
    """Counts what waits, and takes its time over the first of either kind, in case others do not wait."""

    def __init__(self) -> None:
        self.waiting = self.least = self.most = 0
        self._slow = {True, False}
        self._lock = threading.Lock()

    def on_queue(self, change: int) -> None:
        with self._lock:
            is_first = (change > 0) in self._slow
            self._slow.discard(change > 0)
        if is_first:
            time.sleep(0.2)
        with self._lock:
            self.waiting += change
            self.least, self.most = min(self.least, self.waiting), max(self.most, self.waiting)


def test_what_waits_is_told_before_it_is_done_and_what_is_done_before_more_is_drawn() -> None:
    observer = Slow()
    manager = StrategyManager(ThreadsExecutor(2), observers=[observer])
    assert len(list(manager.stream((number for number in range(40)), abs, window=4))) == 40
    assert (observer.waiting, observer.least) == (0, 0)
    assert observer.most <= 4
