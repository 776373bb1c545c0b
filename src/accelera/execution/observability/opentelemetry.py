"""OpenTelemetry spans of batches and streams."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple, final

from accelera._extras import needed_for
from accelera.execution.observability.observer import Observer
from accelera.execution.strategy.strategy import Decision

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

    from accelera.execution.result import ExecutionResult, StreamReport


MOST_EXCEPTIONS = 8
"""A span tells of so many exceptions of tasks and devices; the number of all is an attribute."""


@final
class OpenTelemetryObserver(Observer):
    """Makes every batch and every stream a span; tasks have none.

    The span of a batch is the current one in the thread that called ``execute``: it is a child of the
    caller's, and batches begun inside it are children of its own. The span of a stream is a child of the one
    that was current when the first output was asked for, and never current itself: what the caller does
    between two outputs is not the stream's.

    Parameters
    ----------
    tracer
        Where spans come from; None: the tracer ``accelera`` of the provider in force.

    Raises
    ------
    BackendMissingError
        When ``opentelemetry-api`` is not installed.
    """

    def __init__(self, tracer: Tracer | None = None) -> None:
        with needed_for("OpenTelemetryObserver"):
            from opentelemetry import trace
        self._tracer = trace.get_tracer("accelera") if tracer is None else tracer
        self._threads = _ThreadSpans()
        self._streams: dict[int, Span] = {}

    def on_decision(self, decision: Decision, task_count: int) -> None:
        """Begin a span."""
        from opentelemetry import context, trace

        attributes = {**_decision_attributes(decision), "accelera.task_count": task_count}
        span = self._tracer.start_span("accelera.execute", attributes=attributes)
        self._threads.spans.append(_OpenSpan(span, context.attach(trace.set_span_in_context(span))))

    def on_done(self, result: ExecutionResult[Any]) -> None:
        """End the span with what the result says."""
        span = self._threads.spans[-1].span
        span.set_attribute("accelera.errors", len(result.errors))
        _set_result_attributes(span, result)
        for error in result.errors[:MOST_EXCEPTIONS]:
            span.record_exception(error)
        self._end()

    def on_failed(self, error: BaseException, fallback_occurred: bool) -> None:
        """End the span with the exception."""
        span = self._threads.spans[-1].span
        span.set_attribute("accelera.fallback", fallback_occurred)
        _fail(span, error)
        self._end()

    def on_stream(self, stream: int, decision: Decision) -> None:
        """Begin a span."""
        self._streams[stream] = self._tracer.start_span(
            "accelera.stream", attributes=_decision_attributes(decision)
        )

    def on_stream_end(self, stream: int, report: StreamReport) -> None:
        """End the span with what the report says, and with the exception if there is one."""
        span = self._streams.pop(stream)
        span.set_attribute("accelera.task_count", report.task_count)
        span.set_attribute("accelera.failed_count", report.failed_count)
        span.set_attribute("accelera.ended_by", str(report.ended_by))
        _set_result_attributes(span, report)
        for error in report.device_errors[:MOST_EXCEPTIONS]:
            span.record_exception(error)
        if report.error is not None:
            _fail(span, report.error)
        span.end()

    def _end(self) -> None:
        from opentelemetry import context

        begun = self._threads.spans.pop()
        context.detach(begun.token)
        begun.span.end()


def _decision_attributes(decision: Decision) -> dict[str, str | int]:
    return {"accelera.strategy": str(decision.strategy), "accelera.rule": decision.rule}


def _set_result_attributes(span: Span, outcome: ExecutionResult[Any] | StreamReport) -> None:
    span.set_attribute("accelera.fallback", outcome.fallback_occurred)
    span.set_attribute("accelera.retries", outcome.retries)
    span.set_attribute("accelera.oom_splits", outcome.oom_splits)
    for device, share in outcome.per_device.items():
        span.set_attribute(f"accelera.tasks.{device}", share.tasks)


def _fail(span: Span, error: BaseException) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))


@final
class _OpenSpan(NamedTuple):
    span: Span
    token: Any


class _ThreadSpans(threading.local):
    """The spans that a thread has begun and not ended, the innermost last."""

    def __init__(self) -> None:
        self.spans: list[_OpenSpan] = []
