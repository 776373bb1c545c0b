"""Batches of work as spans, through OpenTelemetry's own SDK."""

from __future__ import annotations

import sys

import pytest
from opentelemetry import trace

from accelera.errors import BackendMissingError
from accelera.execution import ExecutionStrategy, OpenTelemetryObserver, StrategyManager
from accelera.testing._internal import BridgeGpu
from tests.execution.stand_ins import Spans, square


@pytest.fixture
def spans() -> Spans:
    return Spans()


def test_a_batch_is_one_span_however_many_tasks(spans: Spans) -> None:
    StrategyManager(observers=[OpenTelemetryObserver(spans.tracer)]).execute(range(5000), square)
    (span,) = spans()
    assert span.name == "accelera.execute"
    assert dict(span.attributes) == {
        "accelera.strategy": "CpuOnly",
        "accelera.rule": "no GPU",
        "accelera.task_count": 5000,
        "accelera.fallback": False,
        "accelera.retries": 0,
        "accelera.oom_splits": 0,
        "accelera.errors": 0,
        "accelera.tasks.cpu": 5000,
    }


def test_a_fallback_and_its_reason_are_in_the_span(spans: Spans) -> None:
    manager = StrategyManager(
        None,
        BridgeGpu(max_batch=0),
        ExecutionStrategy.GpuOnly,
        observers=[OpenTelemetryObserver(spans.tracer)],
    )
    manager.execute(range(4), square)
    (span,) = spans()
    assert span.attributes["accelera.fallback"] is True
    assert span.attributes["accelera.tasks.cpu"] == 4
    assert span.status.is_ok
    assert any("CUDA out of memory" in event.attributes["exception.message"] for event in span.events)


def test_a_batch_that_raises_ends_its_span_with_the_exception(spans: Spans) -> None:
    manager = StrategyManager(observers=[OpenTelemetryObserver(spans.tracer)])
    with pytest.raises(ZeroDivisionError):
        manager.execute([1, 0], lambda task: 1 // task)
    (span,) = spans()
    assert not span.status.is_ok
    assert span.events[0].attributes["exception.type"] == "ZeroDivisionError"
    manager.execute([1], square)
    assert len(spans()) == 2
    assert spans()[1].parent is None


def test_a_batch_within_a_batch_is_a_child_of_it(spans: Spans) -> None:
    manager = StrategyManager(observers=[OpenTelemetryObserver(spans.tracer)])
    with spans.tracer.start_as_current_span("mine"):
        manager.execute([1], lambda task: manager.execute([task], square).outputs)
    inner, outer, mine = spans()
    assert mine.name == "mine"
    assert (outer.parent.span_id, inner.parent.span_id) == (mine.context.span_id, outer.context.span_id)
    assert not trace.get_current_span().is_recording()


def test_collected_exceptions_are_told_of_a_few_times_only(spans: Spans) -> None:
    StrategyManager(observers=[OpenTelemetryObserver(spans.tracer)]).execute(
        range(-50, 50), lambda task: [0][abs(task) + 1], on_error="collect"
    )
    (span,) = spans()
    assert span.attributes["accelera.errors"] == 100
    assert len(span.events) == 8


def test_without_a_provider_nothing_is_recorded_and_nothing_breaks() -> None:
    assert StrategyManager(observers=[OpenTelemetryObserver()]).execute([3], square).outputs == [9]


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(BackendMissingError, match=r"pip install 'accelera-engine\[metrics\]'"):
        OpenTelemetryObserver()
