"""A device that keeps failing is left alone for a while, then tried with little."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from accelera.execution import ExecutionStrategy, Observer, StrategyManager, ThreadsExecutor
from accelera.execution.executors import device
from accelera.execution.faults.breaker import (
    FIRST_COOLDOWN_S,
    JITTER,
    LONGEST_COOLDOWN_S,
    WINDOW,
    Breaker,
    BreakerState,
)
from accelera.testing import FakeGpu, sticky
from accelera.testing._internal import transient
from tests.threads import run_in_threads


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> Breaker:
    return Breaker(clock, random.Random(0))


def over(breaker: Breaker, clock: Clock) -> None:
    """Let the cool-down pass."""
    clock.now_s += breaker.cooldown_left_s


def test_three_failures_in_a_row_open_it(breaker: Breaker) -> None:
    assert [breaker.failed(), breaker.failed(), breaker.failed()] == [None, None, BreakerState.OPEN]
    assert not breaker.allows()


def test_a_success_between_them_counts(breaker: Breaker) -> None:
    for _ in range(3):
        breaker.failed()
        breaker.failed()
        breaker.succeeded()
        if breaker.state is BreakerState.OPEN:
            break
    assert breaker.state is BreakerState.OPEN, "half of the last ten"
    patient = Breaker()
    for _ in range(20):
        patient.failed()
        patient.succeeded()
        patient.succeeded()
    assert patient.state is BreakerState.CLOSED


def test_a_sticky_failure_opens_it_at_once(breaker: Breaker) -> None:
    assert breaker.failed(sticky=True) is BreakerState.OPEN


def test_cooldowns_double_up_to_five_minutes_with_jitter(breaker: Breaker, clock: Clock) -> None:
    expected = FIRST_COOLDOWN_S
    breaker.failed(sticky=True)
    for _ in range(10):
        assert expected <= breaker.cooldown_left_s <= expected * (1 + JITTER)
        over(breaker, clock)
        assert breaker.allows()
        assert breaker.state is BreakerState.HALF_OPEN
        assert not breaker.allows(), "one probe only"
        breaker.failed()
        expected = min(2 * expected, LONGEST_COOLDOWN_S)
    assert expected == LONGEST_COOLDOWN_S
    over(breaker, clock)
    assert breaker.allows()
    assert breaker.succeeded() is BreakerState.CLOSED
    breaker.failed(sticky=True)
    assert breaker.cooldown_left_s <= FIRST_COOLDOWN_S * (1 + JITTER), "forgiven"


def test_a_probe_that_shows_nothing_may_be_followed_by_another(breaker: Breaker, clock: Clock) -> None:
    breaker.failed(sticky=True)
    over(breaker, clock)
    assert breaker.allows()
    assert breaker.probe_inconclusive() is BreakerState.OPEN
    assert breaker.allows()


def test_old_failures_do_not_lengthen_a_cooldown(breaker: Breaker) -> None:
    breaker.failed(sticky=True)
    before_s = breaker.cooldown_left_s
    assert breaker.failed(sticky=True) is None
    assert breaker.cooldown_left_s == before_s


def test_single_tasks_that_are_too_large_speak_against_a_device_where_nothing_goes_well(
    breaker: Breaker,
) -> None:
    breaker.ran_full()
    breaker.ran_full()
    assert breaker.ran_full("full") is BreakerState.OPEN
    assert breaker.reason == "full"
    breaker.batch_begins()
    assert breaker.allows(), "another batch may have smaller tasks"
    breaker.succeeded()
    for _ in range(20):
        breaker.succeeded()
        for _ in range(WINDOW - 1):
            assert breaker.ran_full() is None
    assert breaker.ran_full() is BreakerState.OPEN


def test_a_device_that_fails_is_not_tried_again_for_the_sake_of_another_batch(breaker: Breaker) -> None:
    breaker.failed(sticky=True)
    breaker.batch_begins()
    assert not breaker.allows()


def managed(gpu: FakeGpu, strategy: ExecutionStrategy, clock: Clock, **options: Any) -> StrategyManager:
    """Return a manager whose breaker goes by ``clock``."""
    manager = StrategyManager(ThreadsExecutor(2), gpu, strategy, learn=False, **options)
    assert manager._gpu is not None
    manager._gpu.breaker = Breaker(clock, random.Random(0))
    return manager


@pytest.mark.parametrize("fault", [transient, sticky])
@pytest.mark.parametrize("strategy", [ExecutionStrategy.GpuOnly, ExecutionStrategy.Hybrid()])
def test_a_dead_gpu_is_asked_once_per_cooldown(
    strategy: ExecutionStrategy,
    fault: Callable[[], Exception],
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal 10: at most three faults, then one probe per cool-down, and the CPU does everything."""
    monkeypatch.setattr(device, "LOOK_AGAIN_S", 1e-4)
    gpu = FakeGpu(faults=lambda call: fault())
    manager = managed(gpu, strategy, clock)
    asked_s: list[float] = []
    run, count, asked = gpu.execute_batch, 400, threading.Event()

    def noting(tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> list[Any]:
        asked_s.append(clock.now_s)
        asked.set()
        return run(tasks, process_fn)

    monkeypatch.setattr(gpu, "execute_batch", noting)

    def slow(task: int) -> int:
        clock.now_s += 0.25
        time.sleep(5e-4)
        assert clock.now_s < 4 * FIRST_COOLDOWN_S or asked.wait(300), "the first cool-down is over"
        return -task

    assert manager._gpu is not None
    while manager._gpu.breaker.state is BreakerState.CLOSED:
        assert manager.execute(range(8), abs).outputs == list(range(8))
    assert len(asked_s) <= 3
    first = len(asked_s)
    asked.clear()
    result = manager.execute(range(count), slow)
    assert result.outputs == [-task for task in range(count)]
    probes_s = asked_s[first:]
    assert all(after - before >= FIRST_COOLDOWN_S for before, after in itertools.pairwise(probes_s))
    assert 1 <= len(probes_s) <= 5, "cool-downs of 5, 10, 20, 40, 80 s in 100 s"
    for _ in range(5):
        before = len(asked_s)
        manager.execute(range(8), lambda task: task)
        assert len(asked_s) == before, "the cool-down lasts beyond the batch"


def test_a_gpu_that_recovers_during_a_batch_is_used_again(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "LOOK_AGAIN_S", 1e-4)
    states: list[str] = []

    class Listener(Observer):
        def on_breaker(self, device: str, state: str) -> None:
            states.append(state)

    gpu = FakeGpu(max_batch=10, faults={0: sticky})
    manager = managed(gpu, ExecutionStrategy.GpuOnly, clock, observers=[Listener()])
    lane = manager._gpu
    assert lane is not None
    lane.size_of(slowly).ran_out(20)
    used = noting_call(gpu, 2, monkeypatch)

    def after_a_while(task: int) -> int:
        if task == 50:
            gpu.revive()
            clock.now_s += 2 * FIRST_COOLDOWN_S
        if task > 100 and threading.current_thread().name == "accelera-cpu":
            assert used.wait(300)
        return slowly(task)

    after_a_while.__module__, after_a_while.__qualname__ = slowly.__module__, slowly.__qualname__
    result = manager.execute(range(400), after_a_while)
    assert result.outputs == list(range(400))
    assert states == ["open", "half-open", "closed"]
    assert gpu.calls[0] == 10
    assert gpu.calls[1] <= 400 // device.PROBE_SHARE
    assert len(gpu.calls) > 2


def noting_call(gpu: FakeGpu, number: int, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return what is set when the call of this number, from 0 on, begins."""
    run, begun = gpu.execute_batch, threading.Event()

    def noting(tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> list[Any]:
        if len(gpu.calls) == number:
            begun.set()
        return run(tasks, process_fn)

    monkeypatch.setattr(gpu, "execute_batch", noting)
    return begun


def slowly(task: int) -> int:
    time.sleep(1e-3)
    return task


def test_a_gpu_that_cannot_be_used_now_is_used_when_it_can(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "LOOK_AGAIN_S", 1e-4)
    gpu = FakeGpu(max_batch=10)
    gpu.available = False
    used = noting_call(gpu, 0, monkeypatch)

    def function(task: int) -> int:
        gpu.available = gpu.available or task == 100
        assert task <= 200 or used.wait(300), "it was used once it could be"
        return task

    manager = managed(gpu, ExecutionStrategy.GpuOnly, clock)
    result = manager.execute(range(1000), function)
    assert result.outputs == list(range(1000))
    assert result.fallback_occurred
    assert gpu.calls


def test_an_empty_batch_takes_no_probe(clock: Clock) -> None:
    gpu = FakeGpu()
    manager = managed(gpu, ExecutionStrategy.GpuOnly, clock)
    lane = manager._gpu
    assert lane is not None
    lane.breaker.failed(sticky=True)
    over(lane.breaker, clock)
    assert manager.execute([], abs).outputs == []
    assert manager.execute([-1], abs).outputs == [1]
    assert (gpu.calls, lane.breaker.state) == ([1], BreakerState.CLOSED)


def test_batches_at_the_same_time_share_one_breaker(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "LOOK_AGAIN_S", 1e-4)
    gpu = FakeGpu(faults=lambda call: sticky())
    manager = managed(gpu, ExecutionStrategy.GpuOnly, clock)
    outputs: list[list[int]] = []
    run_in_threads(*[lambda: outputs.append(manager.execute(range(50), slowly).outputs)] * 4, longest_s=300)
    assert outputs == [list(range(50))] * 4
    assert len(gpu.calls) <= 4
