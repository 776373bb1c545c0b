"""Streams of every kind with faults at random: nothing is lost, doubled, out of order or still waiting."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from accelera.execution import ExecutionStrategy, Observer, StrategyManager, TaskFailure, ThreadsExecutor
from accelera.execution.faults import breaker
from accelera.testing import FakeGpu, sticky
from accelera.testing._internal import BridgeCpu, out_of_memory, transient

SCHEDULES = 600
STRATEGIES = (
    *(ExecutionStrategy.CpuOnly, ExecutionStrategy.GpuOnly),
    *(ExecutionStrategy.Hybrid(), ExecutionStrategy.Auto),
)


class Queue(Observer):
    """Counts what waits, and what was done or failed."""

    def __init__(self) -> None:
        self.waiting = self.least = self.tasks = 0
        self._lock = threading.Lock()

    def on_chunk(self, device: str, task_count: int, seconds: float) -> None:
        with self._lock:
            self.tasks += task_count

    def on_queue(self, change: int) -> None:
        with self._lock:
            self.waiting += change
            self.least = min(self.least, self.waiting)


def sources(count: int) -> Sequence[Iterable[int]]:
    return range(count), iter(range(count)), list(range(count)), (number for number in range(count))


@pytest.mark.parametrize("part", range(4))
def test_streams_survive_their_devices_and_their_callers(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breaker, "FIRST_COOLDOWN_S", 0.01)
    for seed in range(part, SCHEDULES, 4):
        dice = random.Random(seed)
        faults = {
            call: dice.choice([sticky, transient, out_of_memory]) for call in range(60) if dice.random() < 0.3
        }
        gpu = FakeGpu(
            max_batch=dice.choice([None, 0, 1, 3, 50]), faults=faults, before_fault=dice.choice([0, 0.5])
        )
        cpu = dice.choice([ThreadsExecutor(1), ThreadsExecutor(3), BridgeCpu(), None])
        count = dice.choice([0, 1, 2, 5, 40, 300])
        bad = {number for number in range(count) if dice.random() < 0.05}

        def negative(number: int, bad: set[int] = bad) -> int:
            if number in bad:
                raise ValueError(number)
            return -number

        queue = Queue()
        manager = StrategyManager(cpu, gpu, dice.choice(STRATEGIES), learn=False, observers=[queue])
        ordered = dice.random() < 0.5
        on_error: Any = dice.choice(["collect", "skip"])
        window = dice.choice([1, 2, 7, 64, None, "1KiB", "1MiB"])
        stream = manager.stream(
            dice.choice(sources(count)), negative, ordered=ordered, window=window, on_error=on_error
        )
        left_at = dice.choice([count + 1, count + 1, dice.randrange(count + 1)])
        pairs = [pair for pair, _ in zip(stream, range(left_at), strict=False)]
        stream.close()

        indices = [index for index, _ in pairs]
        assert len(set(indices)) == len(indices), seed
        assert not ordered or indices == sorted(indices), seed
        expected = set(range(count)) - (bad if on_error == "skip" else set())
        assert set(indices) == expected or len(indices) == left_at, seed
        output: Any
        for index, output in pairs:
            failed = isinstance(output, TaskFailure)
            assert output.index == index in bad if failed else output == -index, seed
        assert (queue.waiting, queue.least) == (0, 0), seed
        report = stream.report()
        counted = sum(share.tasks for share in report.per_device.values())
        assert counted >= report.task_count, seed
        if report.ended_by == "exhausted":
            assert counted == report.task_count == queue.tasks, seed
