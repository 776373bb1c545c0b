"""Real threads and a GPU that sleeps as long as one of its speed would take."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import accelera.execution.selector
from accelera.execution import ExecutionStrategy, StrategyManager, SystemLoad, ThreadsExecutor, kernel
from accelera.execution.strategy.history import PerformanceHistory

WORKERS = 2
LAUNCH_S = 2e-3
SKEW = 0.8
TRIES = 3
"""Batches of which the quickest counts: others may be using the machine."""


class Setting(NamedTuple):
    """A GPU and a batch."""

    ratio: float
    """Its speed relative to all CPU workers together."""
    cap: int | None
    """Tasks that fit it at once; None: all."""
    count: int  # type: ignore[assignment]  # hides tuple.count
    task_s: float

    def tasks(self) -> list[float]:
        """Return the seconds of every task on one CPU worker."""
        dice = random.Random(7)
        return [self.task_s * dice.lognormvariate(-SKEW * SKEW / 2, SKEW) for _ in range(self.count)]

    def ideal_s(self) -> float:
        """Return the seconds of all work at all devices' rate together, and one launch."""
        return sum(self.tasks()) / (WORKERS * (1 + self.ratio)) + LAUNCH_S


class SleepingGpu:
    """A ``GpuExecutor`` that takes a launch and so much for each task, and has room for so many."""

    name = "sleeping"

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def execute_batch(self, tasks: Sequence[float], process_fn: Callable[[float], Any]) -> list[Any]:
        if self._setting.cap is not None and len(tasks) > self._setting.cap:
            raise RuntimeError("CUDA out of memory (it is asleep)")
        time.sleep(LAUNCH_S + sum(tasks) / (WORKERS * self._setting.ratio))
        return list(tasks)

    def is_available(self) -> bool:
        return True

    def memory_available(self) -> int:
        return 1 << 33


def _sleep(task_s: float) -> float:
    time.sleep(task_s)
    return task_s


_sleep_pure = kernel(pure=True)(_sleep)


def ratios(setting: Setting, warm_runs: int) -> dict[str, float]:
    """Return for each policy how many times longer a batch took than the ideal."""
    both = ExecutionStrategy.Hybrid()
    return {
        "seed's tree": _ratio(setting, ExecutionStrategy.GpuOnly, _sleep, fallback="all"),
        "static 70/30": _ratio(setting, ExecutionStrategy.Hybrid(70, 30), _sleep, fallback="all"),
        "pull": _ratio(setting, both, _sleep),
        "learned": _ratio(setting, ExecutionStrategy.Auto, _sleep, warm_runs),
        "learned, re-issue": _ratio(setting, ExecutionStrategy.Auto, _sleep_pure, warm_runs),
    }


def _ratio(
    setting: Setting,
    strategy: ExecutionStrategy,
    function: Callable[[float], float],
    warm_runs: int = 0,
    fallback: Any = "unfinished",
) -> float:
    with _own_book():
        gpu = SleepingGpu(setting)
        manager = StrategyManager(ThreadsExecutor(WORKERS), gpu, strategy, learn=warm_runs > 0)
        tasks = setting.tasks()
        for _ in range(warm_runs):
            manager.execute(tasks, function, fallback=fallback)
        results = [manager.execute(tasks, function, fallback=fallback) for _ in range(TRIES)]
    assert all(result.outputs == tasks for result in results)
    return min(result.execution_time for result in results) / setting.ideal_s()


@contextmanager
def _own_book() -> Iterator[None]:
    """Measure into a book of its own, as on a machine of one's own: others do not slow down who sleeps."""
    selector_module: Any = accelera.execution.selector
    book, usual_history, usual_load = PerformanceHistory(), selector_module.shared_history, SystemLoad.current
    selector_module.shared_history = lambda: book
    SystemLoad.current = staticmethod(SystemLoad)  # type: ignore[method-assign]
    try:
        yield
    finally:
        selector_module.shared_history = usual_history
        SystemLoad.current = staticmethod(usual_load)  # type: ignore[method-assign]
