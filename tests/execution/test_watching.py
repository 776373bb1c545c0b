"""What can be seen of batches of work: log lines, counts, and a warning when GPUs fail too often."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from accelera._logs import configure_logging
from accelera.errors import DeviceError, SettingError
from accelera.execution import (
    ExecutionResult,
    ExecutionStrategy,
    HardwareCapabilities,
    Observer,
    StrategyManager,
    ThreadsExecutor,
)
from accelera.execution._internal import Decision
from accelera.execution.faults.breaker import Breaker
from accelera.execution.faults.classify import FailureKind
from accelera.execution.observability.telemetry import WINDOW, FallbackRate
from accelera.testing._internal import BridgeGpu
from tests.execution.stand_ins import square
from tests.threads import run_in_threads


class Gpu(BridgeGpu):
    """A GPU executor that says what it is told to say."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.error = error

    def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> list[Any]:
        if self.error is not None:
            raise self.error
        return super().execute_batch(tasks, process_fn)


def fails(number: int) -> int:
    raise ValueError(f"{number} is wrong")


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def messages(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


def test_the_log_of_seed_002(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    hardware = HardwareCapabilities(cpu_cores=16)
    monkeypatch.setattr(HardwareCapabilities, "detect", staticmethod(lambda: hardware))
    with caplog.at_level(logging.DEBUG, "accelera"):
        StrategyManager.cpu_only().execute(range(5), square)
    said = lines(caplog)
    assert said[0] == ("INFO", "Hardware detection: 16 CPU cores, GPU available: false")
    assert said[1] == ("DEBUG", "Small workload detected, CPU-only will be faster")
    assert ("INFO", "Executing 5 tasks with strategy: CpuOnly") in said
    assert re.fullmatch(r"Execution completed in \d+\.\dms \(fallback: false\)", said[-1][1])


def test_a_small_workload_is_told_of_where_there_is_a_gpu(caplog: pytest.LogCaptureFixture) -> None:
    manager = StrategyManager(None, Gpu(), learn=False)
    with caplog.at_level(logging.DEBUG, "accelera"):
        manager.execute(range(9), square)
        manager.execute(range(10), square)
    assert messages(caplog, logging.DEBUG).count("Small workload detected, CPU-only will be faster") == 1
    assert "small workload: 9 tasks are fewer than 10: CPU-only will be faster" in caplog.messages


@pytest.mark.parametrize(
    ("strategy", "warning"),
    [
        (ExecutionStrategy.GpuOnly, "GPU execution failed: CUDA out of memory, falling back to CPU"),
        (ExecutionStrategy.Hybrid(70, 30), "Hybrid execution failed: CUDA out of memory, CPU-only fallback"),
    ],
)
def test_a_fallback_is_one_warning(
    caplog: pytest.LogCaptureFixture, strategy: ExecutionStrategy, warning: str
) -> None:
    manager = StrategyManager(None, Gpu(RuntimeError("CUDA out of memory")), strategy)
    with caplog.at_level(logging.INFO, "accelera"):
        assert manager.execute(range(20), square).fallback_occurred
    warnings = messages(caplog, logging.WARNING)
    assert warnings[0] == warning
    assert warnings.count(warning) == 1
    assert messages(caplog, logging.INFO)[-1].endswith("(fallback: true)")


def test_a_gpu_that_is_left_alone_is_said_to_be_for_what_it_failed_at(
    caplog: pytest.LogCaptureFixture,
) -> None:
    manager = StrategyManager(None, Gpu(RuntimeError("illegal memory access")), ExecutionStrategy.GpuOnly)
    assert manager._gpu is not None
    manager._gpu.breaker = Breaker(clock=lambda: 0.0)
    manager.execute(range(20), square)
    caplog.clear()
    (error,) = manager.execute(range(20), square).errors
    assert str(error) == "[fake] left alone after failures (sticky: illegal memory access)"
    assert messages(caplog, logging.WARNING) == [f"GPU execution failed: {error}, falling back to CPU"]


def test_an_exception_has_a_last_line_too(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "accelera"), pytest.raises(ValueError, match="0 is wrong"):
        StrategyManager.cpu_only().execute(range(5), fails)
    assert re.fullmatch(r"Execution failed in \d+\.\dms \(fallback: false\): ValueError", caplog.messages[-1])


def test_nothing_is_looked_for_when_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    def detect() -> HardwareCapabilities:
        raise AssertionError("nobody asked")

    monkeypatch.setattr(HardwareCapabilities, "detect", staticmethod(detect))
    assert StrategyManager.cpu_only().execute([3], square).outputs == [9]


def test_the_level_is_set_when_a_manager_is_made(
    monkeypatch: pytest.MonkeyPatch, own_logger: logging.Logger
) -> None:
    monkeypatch.setenv("ACCELERA_LOG_LEVEL", "DEBUG")
    StrategyManager.cpu_only()
    assert own_logger.level == logging.DEBUG
    monkeypatch.setenv("ACCELERA_LOG_LEVEL", "loud")
    with pytest.raises(SettingError, match="ACCELERA_LOG_LEVEL"):
        StrategyManager.cpu_only()


def test_managers_that_are_made_at_once_write_every_line_once(
    own_logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = threading.Barrier(2)

    def slowly() -> logging.Handler:
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(0.3)
        return logging.NullHandler()

    monkeypatch.setenv("ACCELERA_LOG_LEVEL", "INFO")
    monkeypatch.setattr(logging, "StreamHandler", slowly)
    monkeypatch.setattr(own_logger, "propagate", False)
    before = len(own_logger.handlers)
    run_in_threads(*[configure_logging] * 2)
    assert len(own_logger.handlers) == before + 1


class Recorder(Observer):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.waiting = 0
        self.most_waiting = 0
        self.failures: list[tuple[str, bool]] = []
        self._lock = threading.Lock()

    def on_device(self, device: str, memory_available: Callable[[], int]) -> None:
        self.heard.append(f"device {device}")

    def on_decision(self, decision: Decision, task_count: int) -> None:
        self.heard.append(f"decision {decision.strategy} {task_count}")

    def on_queue(self, change: int) -> None:
        with self._lock:
            self.waiting += change
            self.most_waiting = max(self.waiting, self.most_waiting)
            assert self.waiting >= 0

    def on_done(self, result: ExecutionResult[Any]) -> None:
        self.heard.append("done")

    def on_failed(self, error: BaseException, fallback_occurred: bool) -> None:
        self.failures.append((type(error).__name__, fallback_occurred))


@pytest.mark.parametrize("count", [0, 1, 5, 2000])
@pytest.mark.parametrize("strategy", [ExecutionStrategy.CpuOnly, ExecutionStrategy.Hybrid()])
def test_a_batch_begins_waits_and_ends(strategy: ExecutionStrategy, count: int) -> None:
    recorder = Recorder()
    manager = StrategyManager(ThreadsExecutor(3), Gpu(), strategy, observers=[recorder])
    manager.execute(range(count), square)
    assert recorder.heard == ["device fake", f"decision {strategy} {count}", "done"]
    assert (recorder.waiting, recorder.most_waiting) == (0, count)


def test_nothing_waits_after_an_exception_or_a_timeout() -> None:
    recorder = Recorder()
    manager = StrategyManager(ThreadsExecutor(2), observers=[recorder])
    with pytest.raises(ValueError, match="is wrong"):
        manager.execute(range(50), fails)
    with pytest.raises(TimeoutError):
        manager.execute(range(50), lambda task: time.sleep(0.02), timeout=0.05)
    assert recorder.waiting == 0
    assert recorder.failures == [("ValueError", False), ("UnfinishedError", False)]


def test_stats_count_what_was_done() -> None:
    gpu = Gpu()
    manager = StrategyManager(None, gpu, ExecutionStrategy.GpuOnly)
    assert (manager.stats().executions, manager.stats().fallback_rate) == (0, 0.0)
    manager.execute(range(30), square)
    gpu.error = DeviceError("CUDA error: launch failure")
    manager.execute(range(20), square)
    with pytest.raises(ValueError, match="is wrong"):
        manager.execute(range(4), fails)
    stats = manager.stats()
    assert (stats.executions, stats.failures, stats.fallbacks) == (3, 1, 2)
    assert stats.fallback_rate == stats.recent_fallback_rate == 2 / 3
    assert stats.per_device["fake"].tasks == 30
    assert stats.per_device["cpu"].tasks >= 20
    assert stats.per_device["cpu"].busy_s > 0


def test_a_stream_counts_as_one_execution() -> None:
    manager = StrategyManager.cpu_only()
    assert sum(output for _, output in manager.stream(range(10), square)) == 285
    assert manager.stats().executions == 1
    assert manager.stats().per_device["cpu"].tasks == 10
    with pytest.raises(ValueError, match="is wrong"):
        list(manager.stream(range(10), fails))
    assert (manager.stats().executions, manager.stats().failures) == (2, 1)


def test_threads_may_share_a_manager_and_its_stats() -> None:
    manager = StrategyManager.cpu_only()
    run_in_threads(*[lambda: [manager.execute(range(7), square) for _ in range(200)]] * 4)
    assert manager.stats().executions == 800
    assert manager.stats().per_device["cpu"].tasks == 5600


def test_a_stream_left_early_is_over() -> None:
    manager = StrategyManager.cpu_only()
    stream = manager.stream(range(100), square)
    assert next(stream) == (0, 0)
    stream.close()
    assert (manager.stats().executions, manager.stats().failures) == (1, 0)


def test_too_many_fallbacks_are_one_warning_until_they_were_fewer() -> None:
    rate = FallbackRate()
    assert [rate.count([FailureKind.MEMORY]) for _ in range(3)] == [None] * 3
    assert [rate.count(()) for _ in range(WINDOW - 4)] == [None] * (WINDOW - 4)
    warning = rate.count([FailureKind.STICKY, FailureKind.MEMORY])
    assert warning is not None
    assert warning.startswith("20% of the last 20 executions fell back to the CPU, more than 10%")
    assert "(4 x out of memory, 1 x sticky)" in warning
    assert "memory_per_task" in warning
    assert "driver" in warning
    assert [rate.count([FailureKind.MEMORY]) for _ in range(5)] == [None] * 5
    assert [rate.count(()) for _ in range(WINDOW)] == [None] * WINDOW
    assert rate.rate == 0
    assert [rate.count([FailureKind.UNKNOWN]) is None for _ in range(3)] == [True, True, False]


def test_a_tenth_is_not_too_many() -> None:
    rate = FallbackRate()
    told = [rate.count([FailureKind.TRANSIENT] if number % 10 == 0 else ()) for number in range(100)]
    assert (rate.rate, told) == (0.1, [None] * 100)


def test_a_manager_warns_of_its_own_fallbacks_only(caplog: pytest.LogCaptureFixture) -> None:
    failing = StrategyManager(None, Gpu(RuntimeError("CUDA out of memory")), ExecutionStrategy.GpuOnly)
    sound = StrategyManager(None, Gpu(), ExecutionStrategy.GpuOnly)
    for _ in range(WINDOW + 5):
        failing.execute(range(3), square)
        sound.execute(range(3), square)
    warnings = [text for text in messages(caplog, logging.WARNING) if "of the last" in text]
    assert len(warnings) == 1
    assert warnings[0].startswith("100% of the last 20 executions")
    assert "(20 x out of memory): state memory_per_task" in warnings[0]
    assert sound.stats().fallbacks == 0
