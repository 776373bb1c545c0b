"""A batch that a GPU fails at, first for want of memory, then for good: the CPU brings it to its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from accelera import ExecutionResult, ExecutionStrategy, StrategyManager, WorkloadProfile
from accelera.execution import Observer, kernel

SIDE = 64 if "ACCELERA_EXAMPLE_SMALL" in os.environ else 256


class FakeGpu:
    """A GPU that is not there: it computes on the host, in a memory of 20 tasks, until its driver is lost."""

    name = "fake-gpu"

    def __init__(self, room: int) -> None:
        self.room = room
        self.lost = False

    def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> list[Any]:
        """Return the outputs of all tasks; raises as CUDA does."""
        if self.lost:
            raise RuntimeError("CUDA error: unspecified launch failure")
        if len(tasks) > self.room:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return [process_fn(task) for task in tasks]

    def is_available(self) -> bool:
        """Return whether it can be used."""
        return True

    def memory_available(self) -> int:
        """Return its free bytes, which it does not tell truly."""
        return 64 << 30


class Told(Observer):
    """Says what happens."""

    def on_split(self, device: str, task_count: int, error: BaseException) -> None:
        """A piece did not fit."""
        print(f"  {device}: {task_count} tasks at once do not fit")

    def on_fallback(self, device: str, task_count: int, error: BaseException) -> None:
        """The CPU takes over."""
        print(f"  {device}: {task_count} tasks are left to the CPU, {error}")


@kernel(pure=True)
def trace_of_power(seed: int) -> float:
    """Return the trace of the cube of a random matrix."""
    matrix = np.random.default_rng(seed).standard_normal((SIDE, SIDE))
    return float(np.trace(matrix @ matrix @ matrix))


def show(result: ExecutionResult[float]) -> None:
    """Print who did what."""
    shares = ", ".join(f"{name} {share.tasks}" for name, share in result.per_device.items())
    print(f"  {result.strategy_used}: {shares} tasks; fallback: {result.fallback_occurred}")


tasks = range(100)
expected = [trace_of_power(seed) for seed in tasks]
gpu = FakeGpu(room=20)
manager = StrategyManager(None, gpu, ExecutionStrategy.GpuOnly, observers=[Told()])

print("a GPU with too little memory:")
result = manager.execute(tasks, trace_of_power)
show(result)
assert result.outputs == expected
assert result.oom_splits > 0
assert not result.fallback_occurred

print("the same GPU, its driver lost:")
gpu.lost = True
result = manager.execute(tasks, trace_of_power)
show(result)
assert result.outputs == expected
assert result.fallback_occurred
assert result.per_device["cpu"].tasks == len(tasks)

stats = manager.stats()
print(f"{stats.fallbacks} of {stats.executions} batches fell back")

print("and where nothing is said, for five tasks:")
print(StrategyManager(None, FakeGpu(20)).explain(WorkloadProfile(task_count=5)))
