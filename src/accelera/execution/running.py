"""One batch carried out by the lanes that its strategy names."""

from __future__ import annotations

import functools
import threading
from typing import final

from accelera.execution.executors.contract import Lane
from accelera.execution.strategy import ExecutionStrategy, Kind
from accelera.execution.work.batch import Batch, nobody
from accelera.execution.work.guarding import guarded


def carry_out(batch: Batch, cpu: Lane, gpu: Lane | None, strategy: ExecutionStrategy) -> None:
    """Return when ``batch`` is over; an interruption stops it and goes on to the caller."""
    if batch.over.is_set():
        return
    try:
        if gpu is None or strategy.kind is Kind.CPU_ONLY:
            cpu.work(batch, caller=not batch.leaves_behind)
        elif strategy.kind is Kind.GPU_ONLY:
            _gpu_first(batch, cpu, gpu)
        else:
            _together(batch, cpu, gpu)
    except BaseException:
        batch.stop("interrupted")
        batch.close()
        raise


def _together(batch: Batch, cpu: Lane, gpu: Lane) -> None:
    """Let both pull; the CPU also waits for what the GPU may leave to it."""
    beside = _Beside(batch, gpu)
    beside.start()
    cpu.work(batch, caller=not batch.leaves_behind)
    beside.wait()


def _gpu_first(batch: Batch, cpu: Lane, gpu: Lane) -> None:
    """Let the GPU do everything; the CPU begins when something is left to it."""
    beside = _Beside(batch, cpu)
    batch.call_cpu = beside.start
    try:
        gpu.work(batch, caller=not batch.leaves_behind)
        beside.wait()
    finally:
        batch.call_cpu = nobody


@final
class _Beside:
    """A lane that works in a thread of its own, from the first time that it is started."""

    def __init__(self, batch: Batch, lane: Lane) -> None:
        self._batch = batch
        self._thread = threading.Thread(
            target=guarded(batch, functools.partial(lane.work, batch, caller=True)),
            name=f"accelera-{lane.name}",
            daemon=True,
        )
        self._started = False
        self._lock = threading.Lock()

    def start(self) -> None:
        """Let it begin, unless it has begun."""
        with self._lock:
            if not self._started:
                self._thread.start()
                self._started = True

    def wait(self) -> None:
        """Return when it is through with the batch, or may be left behind."""
        if self._started:
            self._batch.wait([self._thread])
