"""What a GPU that always fails costs: the same batch with and without it, and how often it was tried.

    python -m benchmarks dead_gpu
    python -m benchmarks dead_gpu --cases gpu_only --rounds 1

The batch takes several seconds of two threads; its tasks compute, so that a lane which looks after a dead
device takes their time. Every round begins with a device of which nothing is known.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from accelera.errors import DeviceError
from accelera.execution import ExecutionStrategy, StrategyManager, ThreadsExecutor
from accelera.execution.faults.breaker import CONSECUTIVE, FIRST_COOLDOWN_S
from benchmarks import cases
from benchmarks.executor_contenders import WORKERS
from benchmarks.executor_tasks import product
from benchmarks.goals import Goal, judged

TASKS, EDGE = 1400, 576
"""About six seconds of two cores."""
STRATEGIES = {
    "gpu_only": ExecutionStrategy.GpuOnly,
    "hybrid": ExecutionStrategy.Hybrid(),
    "shares": ExecutionStrategy.Hybrid(70, 30),
    "auto": ExecutionStrategy.Auto,
}


class DeadGpu:
    """A GPU that says it is there and fails at everything; notes when it was tried."""

    name = "dead"

    def __init__(self) -> None:
        self.tried_s: list[float] = []

    def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> NoReturn:
        self.tried_s.append(time.monotonic())
        raise DeviceError("[dead] launch failure: it is dead")

    def is_available(self) -> bool:
        return True

    def memory_available(self) -> int:
        return 1 << 33


def main(arguments: list[str]) -> dict[str, Any]:
    """Print and save the seconds, their ratios, and the tries."""
    parser = cases.parser("dead_gpu", STRATEGIES)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    tasks = [64] * 200 if options.small else [EDGE] * TASKS
    rounds = 1 if options.small else options.rounds
    compared = {
        name: functools.partial(_compared, name, each, tasks, rounds) for name, each in STRATEGIES.items()
    }
    with _no_warnings():
        return cases.run(options, compared)


@contextlib.contextmanager
def _no_warnings() -> Iterator[None]:
    logger = logging.getLogger("accelera.execution")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _compared(name: str, strategy: ExecutionStrategy, tasks: Sequence[int], rounds: int) -> dict[str, Any]:
    """Compare with ``CpuOnly`` in turn."""
    cpu_s, dead_s, faults, probes = [], [], [], []
    _seconds(StrategyManager.cpu_only(ThreadsExecutor(WORKERS)), tasks[:100])
    for _ in range(rounds):
        cpu_s.append(_seconds(StrategyManager.cpu_only(ThreadsExecutor(WORKERS)), tasks))
        gpu = DeadGpu()
        manager = StrategyManager(ThreadsExecutor(WORKERS), gpu, strategy, learn=False)
        dead_s.append(_seconds(manager, tasks))
        at_first, later = _tries(gpu.tried_s)
        faults.append(at_first)
        probes.append(later / max(1, int(dead_s[-1] / FIRST_COOLDOWN_S)))
    ratio = statistics.median(dead_s) / statistics.median(cpu_s)
    print(f"CPU only {statistics.median(cpu_s):.3f} s, with a dead GPU {statistics.median(dead_s):.3f} s")
    goals = (
        Goal("G10", f"{name}: seconds with a dead GPU / CpuOnly", ratio, 1.05),
        Goal("G10", f"{name}: faults before it is left alone", max(faults), CONSECUTIVE),
        Goal("G10", f"{name}: probes for each cool-down", max(probes), 1),
    )
    return {"cpu_only_s": cpu_s, "dead_gpu_s": dead_s, "goals": judged(goals)}


def _seconds(manager: StrategyManager, tasks: Sequence[int]) -> float:
    began = time.perf_counter()
    outputs = manager.execute(tasks, product).outputs
    seconds = time.perf_counter() - began
    assert len(outputs) == len(tasks)
    return seconds


def _tries(tried_s: Sequence[float]) -> tuple[int, int]:
    """Return how often a device was tried until it was left alone for a cool-down, and how often later."""
    for count, (before, after) in enumerate(itertools.pairwise(tried_s), 1):
        if after - before >= FIRST_COOLDOWN_S:
            return count, len(tried_s) - count
    return len(tried_s), 0


if __name__ == "__main__":
    main(sys.argv[1:])
