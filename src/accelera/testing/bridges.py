"""Executors in the manner of seed 002, as a user's own bridges: little more than ``execute_batch``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class BridgeCpu:
    """A ``CpuExecutor`` that runs tasks one after the other, and remembers how many it was given at once."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        """Number of tasks of each call."""

    def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> list[Any]:
        """Return the outputs of all tasks, in their order."""
        self.batches.append(len(tasks))
        return [process_fn(task) for task in tasks]


class BridgeGpu(BridgeCpu):
    """A ``GpuExecutor`` that runs out of memory above ``max_batch`` tasks per call."""

    name = "fake"

    def __init__(self, max_batch: int = 10**9) -> None:
        super().__init__()
        self.max_batch = max_batch

    def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> list[Any]:
        """Return the outputs of all tasks; raises what CUDA would for too many."""
        if len(tasks) > self.max_batch:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return super().execute_batch(tasks, process_fn)

    def is_available(self) -> bool:
        """Return True."""
        return True

    def memory_available(self) -> int:
        """Return 8 GiB."""
        return 8 << 30
