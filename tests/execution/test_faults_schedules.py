"""Ten thousand random schedules of faults: nothing lost, doubled or out of order, and every batch ends."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import pytest

from accelera.errors import UnfinishedError, UnknownOutcomeError
from accelera.execution import ExecutionResult, ExecutionStrategy, Retry, StrategyManager, ThreadsExecutor
from accelera.execution._internal import Kernel
from accelera.execution.executors import device
from accelera.execution.faults.breaker import Breaker
from accelera.testing import FakeGpu, sticky
from accelera.testing._internal import BridgeCpu, out_of_memory, transient
from tests.execution.stand_ins import Clock, Counting, blanked, run_schedules

GROUPS, SCHEDULES = 20, 500
LONGEST_S = 300.0
"""What a schedule takes at the very most."""


class Schedule:
    """One batch, what goes wrong with it, and what must hold of it in the end."""

    def __init__(self, seed: int) -> None:
        dice = self.dice = random.Random(seed)
        self.count = dice.choice((0, 1, 2, 5, 9, 20, 60, 200))
        self.seen: deque[int] = deque()
        rare = dice.choice((0.0, 0.0, 0.02, 0.3))
        self.bad = {index for index in range(self.count) if dice.random() < rare}
        self.flaky = {index: dice.randint(1, 3) for index in range(self.count) if dice.random() < rare}
        self.slow = {index for index in range(self.count) if dice.random() < dice.choice((0, 0, 0.01))}
        self.rerun: Any = dice.choice(("on_failure", "on_failure", "freely", "never"))
        fallbacks = ["unfinished", "unfinished", "never"] + ["all"] * (self.rerun != "never")
        self.fallback: Any = dice.choice(fallbacks)
        self.on_error: Any = dice.choice(("raise", "collect", "collect", "skip"))
        self.retry = dice.choice((None, Retry(times=2)))
        self.cancel = threading.Event() if dice.random() < 0.1 else None
        self.cancels_at = dice.randrange(max(self.count, 1))
        self.timeout = dice.choice((0.0, 0.002, 30.0)) if dice.random() < 0.1 else None
        self.batched = dice.random() < 0.3
        self.gpu = self.make_gpu()
        self.observer = Counting() if dice.random() < 0.3 else None
        share = dice.randint(0, 100)
        self.strategy = dice.choice(
            (
                ExecutionStrategy.CpuOnly,
                ExecutionStrategy.GpuOnly,
                ExecutionStrategy.Hybrid(),
                ExecutionStrategy.Hybrid(share, 100 - share),
            )
        )

    def make_gpu(self) -> FakeGpu:
        dice = self.dice
        rooms = [dice.choice((1, 3, 10, 50, 500)) for _ in range(dice.choice((1, 3)))]
        faulty = dice.choice((0.0, 0.1, 0.5, 1.0))
        kinds = dice.choice(((transient,), (transient, sticky), (transient, sticky, out_of_memory)))
        faults = [dice.choice(kinds) if dice.random() < faulty else None for _ in range(64)]
        lasting = dice.choice(kinds) if faulty == 1.0 else None

        def fault(call: int) -> Exception | None:
            kind = faults[call] if call < len(faults) else lasting
            return None if kind is None else kind()

        return FakeGpu(
            max_batch=lambda call: rooms[call * len(rooms) // 40 % len(rooms)],
            faults=fault,
            before_fault=dice.choice((0.0, 0.5, 1.0)),
        )

    def function(self, index: int) -> int:
        """The user's function, whose every attempt is noted."""
        self.seen.append(index)
        if self.cancel is not None and index == self.cancels_at:
            self.cancel.set()
        if index in self.slow:
            time.sleep(0.001)
        if index in self.bad:
            raise ValueError(f"{index} is bad")
        if index in self.flaky and self.seen.count(index) <= self.flaky[index]:
            raise OSError(f"{index} is flaky")
        return index * index

    def kernel(self) -> Callable[[int], int]:
        if not self.batched:
            return self.function
        kernel = Kernel(self.function)
        kernel.gpu_batch(lambda tasks, name: [self.function(task) for task in tasks])
        return kernel

    def run(self) -> None:
        outcome = self.outcome()
        self.check_attempts()
        if isinstance(outcome, UnfinishedError):
            assert self.timeout is not None
            outcome = outcome.result
        if isinstance(outcome, ExecutionResult):
            self.check(outcome)
        elif isinstance(outcome, ValueError | OSError):
            assert self.on_error == "raise"
            assert str(outcome).split()[0] in map(str, self.bad | set(self.flaky))
        elif isinstance(outcome, UnknownOutcomeError):
            assert (self.on_error, self.rerun) == ("raise", "never")
        else:
            assert isinstance(outcome, RuntimeError)
            assert self.fallback == "never"
            assert "CUDA" in str(outcome) or "left alone" in str(outcome)

    def outcome(self) -> ExecutionResult[Any] | Exception:
        cpu = self.dice.choice((ThreadsExecutor(1), ThreadsExecutor(3), BridgeCpu()))
        observers = () if self.observer is None else (self.observer,)
        manager = StrategyManager(cpu, self.gpu, self.strategy, learn=False, observers=observers)
        self.manager = manager
        lane = manager._gpu
        assert lane is not None
        lane.breaker = Breaker(Clock(self.dice.choice((0.0, 0.1, 10.0))), random.Random(0))
        try:
            return manager.execute(
                range(self.count),
                self.kernel(),
                on_error=self.on_error,
                rerun=self.rerun,
                fallback=self.fallback,
                retry=self.retry,
                cancel=self.cancel,
                timeout=self.timeout,
            )
        except Exception as error:
            return error

    def check(self, result: ExecutionResult[Any]) -> None:
        """Every task has its own output or the reason why it has none."""
        unfinished = set(result.unfinished_indices)
        failed = set(result.failed_indices)
        if result.stopped_by is None:
            assert not unfinished
        else:
            assert self.cancel is not None or self.timeout is not None
        for failure in result.failures:
            if isinstance(failure.error, UnknownOutcomeError):
                assert self.rerun == "never"
            else:
                assert str(failure.error).split()[0] == str(failure.index)
        done = [index for index in range(self.count) if index not in unfinished | failed]
        assert not self.bad & set(done)
        expected = [index * index if index in set(done) else None for index in range(self.count)]
        if self.on_error == "skip":
            expected = [index * index for index in done]
        assert blanked(result.outputs) == expected
        self.check_counts(result, len(done) + len(failed))
        if result.stopped_by is None:
            assert self.bad <= failed

    def check_counts(self, result: ExecutionResult[Any], settled: int) -> None:
        """What was done or failed is counted for a device, once unless it was done twice."""
        counted = {device: share.tasks for device, share in result.per_device.items() if share.tasks}
        if self.rerun == "freely" or self.fallback == "all":
            assert sum(counted.values()) >= settled
        else:
            assert sum(counted.values()) == settled
        if self.rerun == "freely" or result.stopped_by is not None:
            return  # somebody may still be at a task that nobody waits for
        stats = self.manager.stats().per_device
        assert {device: share.tasks for device, share in stats.items() if share.tasks} == counted
        if self.observer is not None:
            assert {device: count for device, count in self.observer.tasks.items() if count} == counted

    def check_attempts(self) -> None:
        """No task ran again that had not failed, or was not asked for again."""
        attempts = Counter(self.seen)
        tried_again = 0 if self.retry is None else self.retry.times
        if self.rerun == "never":
            assert max(attempts.values(), default=0) <= 1 + tried_again
            return
        again = sum(times - 1 for times in attempts.values())
        allowed = sum(self.gpu.failed) * (1 + tried_again)
        allowed += tried_again * sum(attempts[index] > 0 for index in self.flaky)
        if self.fallback == "all":
            allowed += self.count * (1 + tried_again)
        if self.rerun == "freely":
            allowed += 2 * self.count
        assert again <= allowed


@pytest.mark.parametrize("group", range(GROUPS))
def test_nothing_is_lost_doubled_or_out_of_order(group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "LOOK_AGAIN_S", 1e-4)
    seeds = range(group * SCHEDULES, (group + 1) * SCHEDULES)
    run_schedules(seeds, lambda seed: Schedule(seed).run(), LONGEST_S)
