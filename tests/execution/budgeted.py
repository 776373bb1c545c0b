"""Run as a program: the most memory that batches of tasks take under a budget, as the system counts it.

``python -m tests.execution.budgeted`` reads cases as JSON and prints the peak of each in bytes.
"""

from __future__ import annotations

import json
import mmap
import sys
import time
from collections.abc import Sequence
from typing import Any

from accelera.execution import StrategyManager, WorkloadProfile
from accelera.execution._internal import Kernel
from accelera.memory import process_memory, reset_peak

TASK_BYTES = 24 << 20
COUNT = 20
_FILLING = bytes(1 << 20)


def held() -> mmap.mmap:
    """Return memory of ``TASK_BYTES``, every page of it taken."""
    memory = mmap.mmap(-1, TASK_BYTES)
    while memory.tell() < TASK_BYTES:
        memory.write(_FILLING)
    return memory


def taken(task: int) -> int:
    """Hold ``TASK_BYTES`` for a moment."""
    with held():
        time.sleep(0.003)
    return task


def taken_together(tasks: Sequence[int], device: str) -> list[int]:
    """Hold as much for every task at once."""
    all_held = [held() for _ in tasks]
    time.sleep(0.003)
    for memory in all_held:
        memory.close()
    return list(tasks)


def added_bytes(budget_tasks: int, workers: int, strategy: Any, how: str) -> int:
    """Return the bytes at the peak of the batch that were not there before."""
    function = Kernel(taken, releases_gil=True)
    function.gpu_batch(taken_together)
    profile = WorkloadProfile(COUNT, memory_per_task=TASK_BYTES)
    manager = StrategyManager.auto(
        budget_tasks * TASK_BYTES, strategy=strategy, workers=workers, device="sim:1GiB", learn=False
    )
    manager.execute(range(4), lambda task: task)
    before = process_memory().rss_bytes
    reset_peak()
    if how == "stream":
        outputs = [output for _, output in manager.stream(range(COUNT), function, profile)]
    else:
        outputs = manager.execute(range(COUNT), function, profile).outputs
    assert outputs == list(range(COUNT))
    return process_memory().peak_bytes - before


if __name__ == "__main__":
    print(json.dumps([added_bytes(*case) for case in json.load(sys.stdin)]))
