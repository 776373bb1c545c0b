"""Streams are seen as batches are: learned from, counted, logged, in metrics and in spans."""

from __future__ import annotations

import itertools
import logging
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from prometheus_client import CollectorRegistry

from accelera.execution import (
    ExecutionStrategy,
    Observer,
    OpenTelemetryObserver,
    PrometheusObserver,
    Retry,
    StrategyManager,
    ThreadsExecutor,
    WorkloadProfile,
)
from accelera.execution._internal import Decision, StreamReport
from accelera.execution.observability.telemetry import MOST_ERRORS, Telemetry
from accelera.execution.strategy.history import shared_history
from accelera.execution.streaming.stream import SAMPLES_AT_ONCE
from accelera.testing import FakeGpu, sticky
from accelera.testing._internal import transient
from tests.execution.stand_ins import Spans, square
from tests.threads import run_in_threads

GPU_ONLY = ExecutionStrategy.GpuOnly


def fails_at_seven(number: int) -> int:
    if number == 7:
        raise ValueError("seven")
    return number


class Recorder(Observer):
    """Keeps what it hears of streams, and checks that what waits is never less than nothing."""

    def __init__(self) -> None:
        self.begun: dict[int, Decision] = {}
        self.ended: list[tuple[int, StreamReport]] = []
        self.waiting = self.most_waiting = self.tasks = 0
        self.negative = False
        self._lock = threading.Lock()

    def on_stream(self, stream: int, decision: Decision) -> None:
        self.begun[stream] = decision

    def on_stream_end(self, stream: int, report: StreamReport) -> None:
        self.ended.append((stream, report))

    def on_chunk(self, device: str, task_count: int, seconds: float) -> None:
        with self._lock:
            self.tasks += task_count

    def on_queue(self, change: int) -> None:
        with self._lock:
            self.waiting += change
            self.most_waiting = max(self.waiting, self.most_waiting)
            self.negative |= self.waiting < 0

    @property
    def report(self) -> StreamReport:
        ((_, report),) = self.ended
        return report


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.mark.parametrize(
    ("strategy", "rule"),
    [(ExecutionStrategy.CpuOnly, "given"), (GPU_ONLY, "given"), (ExecutionStrategy.Auto, "stream")],
)
def test_a_stream_begins_waits_and_ends(recorder: Recorder, strategy: ExecutionStrategy, rule: str) -> None:
    manager = StrategyManager(ThreadsExecutor(2), FakeGpu(), strategy, observers=[recorder], learn=False)
    stream = manager.stream(range(3000), square, window=100)
    assert recorder.begun == {}, "nothing begins before it is asked for"
    assert sum(1 for _ in stream) == 3000
    assert [decision.rule for decision in recorder.begun.values()] == [rule]
    assert [number for number, _ in recorder.ended] == list(recorder.begun)
    report = recorder.report
    assert (report.task_count, report.failed_count, report.ended_by) == (3000, 0, "exhausted")
    assert sum(share.tasks for share in report.per_device.values()) == recorder.tasks == 3000
    assert (report.error, report.fallback_occurred, report.execution_time > 0) == (None, False, True)
    assert (recorder.waiting, recorder.negative) == (0, False)
    assert 1 <= recorder.most_waiting <= 101
    assert stream.report().task_count == 3000


def test_streams_have_numbers_of_their_own(recorder: Recorder) -> None:
    manager = StrategyManager(observers=[recorder])
    first, second = manager.stream(range(5), square), manager.stream(range(5), square)
    assert [next(first), next(second)] == [(0, 0), (0, 0)]
    list(first)
    list(second)
    assert [number for number, _ in recorder.ended] == list(recorder.begun)
    assert len(recorder.begun) == 2


def test_how_a_stream_ended_is_told(recorder: Recorder) -> None:
    manager = StrategyManager(ThreadsExecutor(2), observers=[recorder])
    with pytest.raises(ValueError, match="seven"):
        list(manager.stream(itertools.count(), fails_at_seven))
    with manager.stream(itertools.count(), square) as stream:
        next(stream)
    for _ in manager.stream(itertools.count(), square):
        break
    cancel = threading.Event()
    for _ in manager.stream(itertools.count(), square, cancel=cancel):
        cancel.set()
    manager.stream(itertools.count(), square).close()
    reports = [report for _, report in recorder.ended]
    assert [report.ended_by for report in reports] == ["error", "closed", "closed", "cancelled"]
    assert [repr(report.error) for report in reports] == ["ValueError('seven')", "None", "None", "None"]
    assert recorder.waiting == 0
    assert (manager.stats().executions, manager.stats().failures) == (4, 1)


def test_the_report_of_a_stream_says_how_it_ended() -> None:
    manager, cancel = StrategyManager(ThreadsExecutor(2)), threading.Event()

    stream = manager.stream(range(3), square)
    next(stream)
    assert (stream.report().ended_by, stream.report().error) == (None, None)
    list(stream)
    assert (stream.report().ended_by, stream.report().error) == ("exhausted", None)
    assert stream.report() == stream.report(), "what is over takes no more time"

    with manager.stream(itertools.count(), square) as left:
        next(left)
    closed = manager.stream(range(3), square)
    closed.close()
    assert (left.report().ended_by, closed.report().ended_by) == ("closed", "closed")

    cancelled = manager.stream(itertools.count(), square, cancel=cancel)
    for _ in cancelled:
        cancel.set()
    assert cancelled.report().ended_by == "cancelled"

    failing = manager.stream(itertools.count(), fails_at_seven)
    with pytest.raises(ValueError, match="seven") as raised:
        list(failing)
    failing.close()
    assert (failing.report().ended_by, failing.report().error) == ("error", raised.value)


def test_failed_tasks_and_retries_are_in_the_report(recorder: Recorder) -> None:
    manager = StrategyManager(ThreadsExecutor(1), observers=[recorder])
    pairs = manager.stream(range(10), fails_at_seven, on_error="skip", retry=Retry(2, on=(ValueError,)))
    assert len(list(pairs)) == 9
    report = recorder.report
    assert (report.task_count, report.failed_count, report.retries) == (10, 1, 2)
    assert recorder.waiting == 0


def test_a_gpu_that_always_fails_is_remembered_by_a_few_errors(recorder: Recorder) -> None:
    """The breaker lets a probe through whenever it is due, for as long as the stream goes on."""
    manager = StrategyManager(
        ThreadsExecutor(1), FakeGpu(faults=lambda call: sticky()), GPU_ONLY, observers=[recorder], learn=False
    )
    watches: list[Telemetry] = []
    manager._totals.count = lambda watch, failed: watches.append(watch)  # type: ignore[assignment]
    assert len(list(manager.stream(range(500), square, window=8))) == 500
    report = recorder.report
    assert report.fallback_occurred
    assert report.per_device["cpu"].tasks == 500
    (watch,) = watches
    for _ in range(10 * MOST_ERRORS):
        watch._queued = 0
        watch.fell_back("fake", 1, transient())
    assert len(watch.device_errors) == MOST_ERRORS
    assert {kind.value for kind in watch.reasons} == {"sticky", "transient"}


@pytest.fixture
def own_book(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ACCELERA_CACHE", str(tmp_path))
    shared_history.cache_clear()
    yield
    shared_history.cache_clear()


def work(number: int) -> int:
    time.sleep(5e-4)
    return number


@pytest.mark.usefixtures("own_book")
def test_a_stream_teaches_how_long_its_tasks_take() -> None:
    manager = StrategyManager(ThreadsExecutor(2), FakeGpu(max_batch=4))
    profile = WorkloadProfile(500)
    assert manager.explain(profile, work).predicted_s == {}
    assert len(list(manager.stream(range(500), work, window=64))) == 500
    decision = manager.explain(profile, work)
    assert min(decision.samples.values()) >= 10
    assert set(decision.predicted_s) >= {"CpuOnly", "GpuOnly"}


@pytest.mark.usefixtures("own_book")
def test_an_endless_stream_teaches_as_it_goes_and_keeps_little() -> None:
    manager = StrategyManager(ThreadsExecutor(2))
    stream = manager.stream(itertools.count(), work, window=16)
    most = 0
    for index, _ in stream:
        most = max(most, len(stream._telemetry._telemetry.samples))
        if index == 1500:
            break
    known = manager._selector._model.known(work, None)  # type: ignore[union-attr]
    assert known is not None
    assert known.batches >= 1
    stream.close()
    assert most <= SAMPLES_AT_ONCE + 16


@pytest.mark.usefixtures("own_book")
def test_nothing_is_learned_of_tasks_that_failed() -> None:
    def fails(number: int) -> int:
        time.sleep(5e-4)
        raise ValueError(number)

    manager = StrategyManager(ThreadsExecutor(2))
    assert list(manager.stream(range(200), fails, on_error="skip")) == []
    assert manager._selector._model.known(fails, None) is None  # type: ignore[union-attr]


def test_the_log_of_a_stream(caplog: pytest.LogCaptureFixture) -> None:
    manager = StrategyManager.cpu_only()
    with caplog.at_level(logging.INFO, "accelera"):
        list(manager.stream(range(100), square))
        with pytest.raises(ValueError, match="seven"):
            list(manager.stream(range(100), fails_at_seven))
    began, ended, counted, again, failed = caplog.messages
    assert began == again == "Executing a stream with strategy: CpuOnly"
    assert re.fullmatch(r"Execution completed in \d+\.\dms \(fallback: false\)", ended)
    assert counted == "Stream exhausted after 100 tasks"
    assert re.fullmatch(r"Execution failed in \d+\.\dms \(fallback: false\): ValueError", failed)


def test_metrics_of_streams() -> None:
    registry = CollectorRegistry()

    def meter(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"accelera_execution_{name}", labels)

    observers = [PrometheusObserver(registry)]
    manager = StrategyManager(ThreadsExecutor(1), observers=observers)
    stream = manager.stream(range(50), lambda number: meter("queue_depth") or 0, window=8)
    assert all(1 <= depth <= 8 for _, depth in stream)
    assert meter("queue_depth") == 0
    assert meter("seconds_count", strategy="CpuOnly", fallback="false") == 1
    assert meter("tasks_total", device="cpu") == 50
    with pytest.raises(ValueError, match="seven"):
        list(manager.stream(itertools.count(), fails_at_seven))
    assert (meter("failures_total"), meter("queue_depth"), meter("fallback_rate")) == (1, 0, 0)
    broken = StrategyManager(
        None, FakeGpu(faults=lambda call: sticky()), GPU_ONLY, observers=observers, learn=False
    )
    list(broken.stream(range(50), square))
    assert meter("seconds_count", strategy="GpuOnly", fallback="true") == 1
    assert (meter("fallback_tasks_total", reason="sticky") or 0) > 0
    assert meter("fallback_rate") == pytest.approx(1 / 3)


def test_a_stream_is_one_span_that_is_never_the_current_one() -> None:
    spans = Spans()
    manager = StrategyManager(observers=[OpenTelemetryObserver(spans.tracer)])
    with spans.tracer.start_as_current_span("mine") as mine:
        stream = manager.stream(range(300), square)
        next(stream)
        assert trace.get_current_span() is mine
    assert sum(1 for _ in stream) == 299
    assert not trace.get_current_span().is_recording()
    _, span = spans()
    assert (span.name, span.parent.span_id) == ("accelera.stream", mine.get_span_context().span_id)
    assert dict(span.attributes) == {
        "accelera.strategy": "CpuOnly",
        "accelera.rule": "no GPU",
        "accelera.task_count": 300,
        "accelera.failed_count": 0,
        "accelera.ended_by": "exhausted",
        "accelera.fallback": False,
        "accelera.retries": 0,
        "accelera.oom_splits": 0,
        "accelera.tasks.cpu": 300,
    }


def test_a_span_tells_what_ended_its_stream() -> None:
    spans = Spans()
    manager = StrategyManager(observers=[OpenTelemetryObserver(spans.tracer)])
    with pytest.raises(ValueError, match="seven"):
        list(manager.stream(range(50), fails_at_seven))
    stream = manager.stream(itertools.count(), square)
    next(stream)
    run_in_threads(stream.close)
    failed, closed = spans()
    assert not failed.status.is_ok
    assert failed.events[0].attributes["exception.type"] == "ValueError"
    assert closed.status.is_ok
    assert closed.attributes["accelera.ended_by"] == "closed"


def test_what_a_gpu_failed_at_is_in_the_span() -> None:
    spans = Spans()
    gpu, observers = FakeGpu(faults=lambda call: sticky()), [OpenTelemetryObserver(spans.tracer)]
    manager = StrategyManager(None, gpu, GPU_ONLY, observers=observers, learn=False)
    list(manager.stream(range(50), square))
    (span,) = spans()
    assert span.attributes["accelera.fallback"] is True
    assert span.attributes["accelera.tasks.cpu"] == 50
    assert "illegal memory access" in span.events[0].attributes["exception.message"]
