"""Streams whose source blocks, fails or never ends, and that are left before their end."""

from __future__ import annotations

import gc
import itertools
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from accelera.execution import ExecutionStrategy, StrategyManager, TaskFailure, ThreadsExecutor
from accelera.execution.executors import lock_probe
from accelera.execution.observability.telemetry import Telemetry
from accelera.execution.streaming.queue import ReorderBuffer, StreamQueue
from accelera.execution.streaming.window import Window, size_of
from accelera.execution.tasks.queue import DeviceKind
from accelera.testing import FakeGpu, sticky
from accelera.testing._internal import BridgeCpu
from tests.execution.stand_ins import Alive, Megabyte

PATIENCE_S = 300
"""Longer than anything here takes, shorter than for ever."""
STRATEGIES = [ExecutionStrategy.CpuOnly, ExecutionStrategy.GpuOnly, ExecutionStrategy.Hybrid()]


def within_patience(do: Callable[[], Any]) -> Any:
    """Return what ``do`` returns, in a thread that may hang."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(do()), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert results, "it hangs"
    return results[0]


def test_the_cpu_stays_for_what_a_gpu_leaves_after_the_last_task_was_drawn() -> None:
    ended = threading.Event()

    def tasks() -> Iterator[int]:
        yield from range(4)
        ended.set()

    def fails_late(call: int) -> BaseException:
        ended.wait(PATIENCE_S)
        time.sleep(0.02)
        return sticky()

    manager = StrategyManager(ThreadsExecutor(1), FakeGpu(faults=fails_late), learn=False)
    assert within_patience(lambda: list(manager.stream(tasks(), abs))) == [(n, n) for n in range(4)]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_outputs_come_while_the_source_waits_for_what_becomes_of_them(strategy: ExecutionStrategy) -> None:
    """Each output brings the next task, as when pages are found by reading pages."""
    found: queue.SimpleQueue[int] = queue.SimpleQueue()
    found.put(0)
    manager = StrategyManager(ThreadsExecutor(2), FakeGpu(), strategy, learn=False)

    def follow() -> list[int]:
        outputs = []
        for _, output in manager.stream(iter(found.get, 20), lambda number: number + 1):
            outputs.append(output)
            found.put(output)
        return outputs

    assert within_patience(follow) == list(range(1, 21))


def test_a_source_that_blocks_is_left_behind() -> None:
    go = threading.Event()

    def tasks() -> Iterator[int]:
        yield 1
        go.wait(PATIENCE_S)
        yield 2

    def take_one() -> list[Any]:
        for pair in StrategyManager.cpu_only().stream(tasks(), abs):
            return [pair]
        return []

    assert within_patience(take_one) == [(0, 1)]
    assert not go.is_set()
    go.set()


def test_one_thread_draws() -> None:
    drawing: set[int] = set()

    def tasks() -> Iterator[int]:
        for number in range(3000):
            drawing.add(threading.get_ident())
            yield number

    manager = StrategyManager(ThreadsExecutor(3), FakeGpu(), learn=False)
    assert len(list(manager.stream(tasks(), abs, window=32))) == 3000
    assert len(drawing) == 1
    assert threading.get_ident() not in drawing


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_window_in_bytes_bounds_tasks_of_unknown_size(strategy: ExecutionStrategy) -> None:
    manager = StrategyManager(BridgeCpu(), FakeGpu(), strategy, learn=False)
    alive = Alive()
    endless = (Megabyte(alive) for _ in itertools.count())
    stream = manager.stream(endless, lambda large: large.nbytes, window="8MiB")
    assert [output for _, output in itertools.islice(stream, 100)] == [1 << 20] * 100
    stream.close()
    assert 2 <= alive.peak <= 9, "the window, and the one that is being drawn"


def test_a_window_in_bytes_begins_with_little() -> None:
    bridge = BridgeCpu()
    stream = StrategyManager.cpu_only(bridge).stream(itertools.count(), bytes, window="1MiB")
    assert len(list(itertools.islice(stream, 300))) == 300
    stream.close()
    assert max(bridge.batches) <= 600


def test_the_window_grows_with_what_is_known() -> None:
    window = Window("1MiB")
    assert (window.room, window.most) == (1, 1 << 20)
    window.draw(1)
    assert window.weigh(b"")
    assert not window.weigh(b"")
    assert window.room <= 0
    assert window.keep(b"x" * 1000) > 1000
    assert window.room == 1
    window.let_go(1033)
    assert window.room == 1
    window.draw(1)
    assert window.weigh(b"x" * (1 << 19)), "half of it at once"
    assert window.room <= 0
    assert window.most == 1


def test_sizes_of_large_and_of_endless_containers() -> None:
    itself: list[Any] = []
    itself.extend([itself] * 100)
    assert size_of(itself) > 0
    assert size_of([bytes(10)] * 10**6) == pytest.approx(10**6 * (8 + size_of(bytes(10))), rel=0.01)
    assert size_of({"a": bytes(1000)}) > 1000


def test_a_failure_that_is_an_output_is_one() -> None:
    failure = TaskFailure(7, ValueError("of another stream"), "cpu")
    assert list(StrategyManager.cpu_only().stream([failure], lambda each: each)) == [(0, failure)]


def test_nothing_is_under_way_once_the_loop_is_left() -> None:
    busy: list[int] = []
    go, until = threading.Event(), time.monotonic() + PATIENCE_S

    def first_is_quick(number: int) -> int:
        if number:
            busy.append(number)
            go.wait(PATIENCE_S)
            busy.remove(number)
        return number

    manager = StrategyManager.cpu_only(ThreadsExecutor(3))
    for _ in manager.stream(itertools.count(), first_is_quick):
        while not busy:
            assert time.monotonic() < until, "others go on meanwhile"
            time.sleep(0.001)
        threading.Timer(0.05, go.set).start()
        break
    assert busy == []


def test_after_its_end_a_stream_has_nothing() -> None:
    manager = StrategyManager.cpu_only()
    with manager.stream(range(5), abs) as stream:
        assert next(stream) == (0, 0)
    assert list(stream) == []
    assert stream.report().task_count >= 1
    failing = manager.stream([0], lambda task: 1 // task)
    with pytest.raises(ZeroDivisionError):
        next(failing)
    assert list(failing) == []
    never_begun = manager.stream(range(5), abs)
    never_begun.close()
    assert list(never_begun) == []


def test_a_stream_that_is_garbage_ends_whichever_thread_collects_it() -> None:
    dropped, collected = threading.Event(), threading.Event()
    before = set(threading.enumerate())

    def collects(number: int) -> int:
        if number == 1:
            dropped.wait(PATIENCE_S)
            gc.collect()
            collected.set()
        return number

    holder: dict[str, Any] = {}
    holder["stream"] = StrategyManager.cpu_only(ThreadsExecutor(1)).stream(itertools.count(), collects)
    holder["itself"] = holder
    assert next(holder["stream"]) == (0, 0)
    del holder
    dropped.set()
    assert collected.wait(PATIENCE_S)
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_a_task_may_end_its_own_stream() -> None:
    streams: list[Any] = []

    def ends(number: int) -> int:
        if number == 3:
            streams[0].close()
        return number

    streams.append(StrategyManager.cpu_only(ThreadsExecutor(2)).stream(itertools.count(), ends))
    pairs = within_patience(lambda: list(streams[0]))
    assert pairs == [(number, number) for number in range(len(pairs))]


def test_a_script_ends_though_its_stream_does_not() -> None:
    script = (
        "import itertools; from accelera.execution import StrategyManager;"
        "stream = StrategyManager.cpu_only().stream(itertools.count(), abs); print(next(stream))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=PATIENCE_S, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "(0, 0)\n", "")


@pytest.mark.parametrize("hangs", ["task", "source"])
def test_a_token_ends_a_stream_that_hangs(hangs: str) -> None:
    began, go, cancel = threading.Event(), threading.Event(), threading.Event()

    def wait(number: int) -> int:
        if number == 2:
            began.set()
            go.wait(PATIENCE_S)
        return number

    source, function = (range(5), wait) if hangs == "task" else (map(wait, range(5)), abs)
    stream = StrategyManager.cpu_only(BridgeCpu()).stream(source, function, window=1, cancel=cancel)
    threading.Thread(target=lambda: began.wait(PATIENCE_S) and cancel.set(), daemon=True).start()
    assert within_patience(lambda: list(stream)) == [(0, 0), (1, 1)]
    assert not go.is_set()
    go.set()


def test_where_a_stream_runs_is_what_the_manager_was_told() -> None:
    both = {f"accelera-{name}": threading.Event() for name in ("cpu", "fake")}

    def with_the_other(number: int) -> int:
        both[threading.current_thread().name].set()
        assert all(each.wait(PATIENCE_S) for each in both.values())
        return number

    def shares(
        strategy: ExecutionStrategy, function: Callable[[int], int] = abs, **faults: Any
    ) -> dict[str, int]:
        manager = StrategyManager(ThreadsExecutor(2), FakeGpu(**faults), strategy, learn=False)
        pairs = list(manager.stream(range(500), function, window=64))
        assert pairs == [(number, number) for number in range(500)]
        return {name: share.tasks for name, share in manager.stats().per_device.items() if share.tasks}

    assert shares(ExecutionStrategy.CpuOnly) == {"cpu": 500}
    assert shares(ExecutionStrategy.GpuOnly) == {"fake": 500}
    assert set(shares(ExecutionStrategy.Hybrid(70, 30), with_the_other)) == {"cpu", "fake"}
    assert shares(ExecutionStrategy.GpuOnly, faults={0: sticky}) == {"cpu": 500}
    assert shares(ExecutionStrategy.GpuOnly, max_batch=0) == {"cpu": 500}


def test_a_gpu_that_is_much_slower_does_not_hold_the_window() -> None:
    def slow_enough(number: int) -> int:
        time.sleep(1e-4)
        return number

    def tasks_of_the_gpu() -> int:
        manager = StrategyManager(ThreadsExecutor(2), FakeGpu(task_s=5e-3), learn=False)
        assert len(list(manager.stream(range(2000), slow_enough, window=256))) == 2000
        share = manager.stats().per_device.get("fake")
        return 0 if share is None else share.tasks

    assert any(tasks_of_the_gpu() < 400 for _ in range(5)), "a machine that stalls may mislead one of them"


def test_lock_probe_ignores_waiting_for_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each task takes 2 ms with a core, and comes 10 ms after a thread requested it; another thread runs."""
    clock = SimpleNamespace(now_s=0.0)
    clocks = SimpleNamespace(perf_counter=lambda: clock.now_s, thread_time=lambda: clock.now_s)
    monkeypatch.setattr(lock_probe, "time", clocks)
    feed = StreamQueue(iter(range(60)), abs, Telemetry(), Window(64), ReorderBuffer())
    feed.draw()
    take = feed.take

    def seldom(side: DeviceKind, count: int, *, wait: bool = True) -> Any:
        clock.now_s += 0.01
        return take(side, count, wait=wait)

    monkeypatch.setattr(feed, "take", seldom)
    probe = lock_probe.LockProbe()
    probed = lock_probe.ProbedQueue(feed, probe, lambda: None)
    other = threading.Thread(target=probed.take, args=(DeviceKind.CPU, 1))
    other.start()
    other.join()
    while (piece := probed.take(DeviceKind.CPU, 1)) is not None and piece.start < 59:
        clock.now_s += 0.002
        probed.finish(piece.start, piece.tasks)
    assert probe.cores == pytest.approx(2)


def test_what_came_back_remains_when_the_source_is_at_its_end() -> None:
    feed = StreamQueue(iter(range(4)), abs, Telemetry(), Window(8), ReorderBuffer())
    assert feed.remaining == 8, "nobody knows"
    feed.draw()
    piece = feed.take(DeviceKind.CPU, 3)
    assert piece is not None
    assert feed.remaining == 1
    feed.give_back(piece)
    assert feed.remaining == 4
    assert feed.take(DeviceKind.CPU, 2) == (0, [0, 1])
    assert feed.remaining == 2
