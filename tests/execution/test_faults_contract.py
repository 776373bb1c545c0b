"""Our own executors, and bridges as users write them, keep the contract that is shipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from accelera.execution import CpuExecutor, ProcessesExecutor, SimulatedExecutor, ThreadsExecutor
from accelera.testing import ExecutorContract, FakeGpu


class TestThreads(ExecutorContract):
    def make_executor(self) -> CpuExecutor:
        return ThreadsExecutor(3)


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessesExecutor]:
    with ProcessesExecutor(2) as executor:
        yield executor


class TestProcesses(ExecutorContract):
    @pytest.fixture(autouse=True)
    def keep(self, processes: ProcessesExecutor) -> None:
        self.executor = processes

    def make_executor(self) -> CpuExecutor:
        return self.executor


class TestFakeGpu(ExecutorContract):
    def make_executor(self) -> CpuExecutor:
        return FakeGpu()


class TestSmallFakeGpu(ExecutorContract):
    """One whose memory suffices for the batches given to it directly."""

    def make_executor(self) -> CpuExecutor:
        return FakeGpu(max_batch=1000, launch_s=1e-5)


class TestSimulated(ExecutorContract):
    def make_executor(self) -> CpuExecutor:
        return SimulatedExecutor("64MiB")


class TestBridge(ExecutorContract):
    class Bridge:
        def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> list[Any]:
            return [process_fn(task) for task in tasks]

    def make_executor(self) -> CpuExecutor:
        return self.Bridge()
