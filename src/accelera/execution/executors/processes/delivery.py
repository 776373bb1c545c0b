"""Delivery of output of workers to the streams, log handlers and warnings of the caller."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import sys
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TextIO, final

from accelera.execution.executors.processes.messages import Part, unpack

_LOGGER = logging.getLogger("accelera.execution")
POLL_S: Final = 0.05
"""Seconds between two checks for events that do not notify a waiting thread."""
SIGNAL_POLL_S: Final = 0.5
"""Seconds after which a wait starts again, so that a signal that came as it started is handled."""
MAX_PENDING_BYTES: Final = 64 << 20
"""Output that waits for delivery before its workers must wait as well."""
_FOREIGN: Final[dict[str, Any]] = {}
"""Registry of warnings in modules that this process has not imported."""

_DELIVERIES: Final[contextvars.ContextVar[tuple[OutputDelivery, ...]]] = contextvars.ContextVar(
    "accelera_output_deliveries", default=()
)
"""Deliveries whose stream or handler is running in this context, the outermost first."""


def is_delivering() -> bool:
    """Return whether the calling thread runs a stream or handler to which output is delivered."""
    here = threading.get_ident()
    return any(delivery.thread == here for delivery in _DELIVERIES.get())


@final
class _OutputEvent(NamedTuple):
    """Packed output of a task."""

    packed: Part
    is_deferred: bool


@final
class OutputDelivery:
    """Output of one batch, which drivers put and one thread delivers. Thread-safe.

    Streams and handlers of the caller run without any lock or worker of the executor, so they may run batches
    themselves. An exception that they raise is reported on ``sys.stderr`` and does not end the batch.

    Parameters
    ----------
    stopped
        Returns whether the batch is stopped: drivers do not wait for a handler any more.
    has_waiting_drivers
        Returns whether a driver waits for a worker. It may belong to a batch of a handler, so output that
        waits for this handler must not keep a worker busy then.
    """

    def __init__(self, stopped: Callable[[], bool], has_waiting_drivers: Callable[[], bool]) -> None:
        self._stopped = stopped
        self._has_waiting_drivers = has_waiting_drivers
        self._turn = threading.Condition()
        self._pending: deque[_OutputEvent] = deque()
        self._pending_bytes = 0
        self._put_count = 0
        self._delivered_count = 0
        self._drivers = 0
        self._is_closed = False
        self._outer = _DELIVERIES.get()
        self._reported: set[tuple[str, type[Exception]]] = set()
        self._is_event_deferred = False
        self.thread = threading.get_ident()
        """The thread that delivers."""

    def add_driver(self) -> None:
        """Note that one more driver may put output."""
        with self._turn:
            self._drivers += 1

    def remove_driver(self) -> None:
        """Note that a driver has ended."""
        with self._turn:
            self._drivers -= 1
            self._turn.notify_all()

    def put(self, events: Sequence[Part]) -> None:
        """Hand over packed events; waits while too much output is pending."""
        with self._turn:
            while self._pending_bytes >= MAX_PENDING_BYTES and not self._is_closed:
                if self._has_waiting_drivers() or self._stopped():
                    break
                self._turn.wait(POLL_S)
            self._append(events)

    def defer(self, packed: Part) -> bool:
        """Hand over a record of a batch that a handler runs; return False if nothing is delivered any more.

        It is delivered after the handler has returned. Where the handler then runs a batch again, records of
        that batch are left out: they would repeat without end.
        """
        with self._turn:
            if not self._is_closed and not self._is_event_deferred:
                self._append([packed], is_deferred=True)
            return not self._is_closed

    def wait_until_delivered(self) -> None:
        """Return when all output that was put before is delivered, or the batch is stopped."""
        with self._turn:
            count = self._put_count
            while self._delivered_count < count and not self._is_closed:
                if not self._turn.wait(POLL_S) and self._stopped():
                    return

    def run(self, *, until_stopped: bool = False) -> None:
        """Deliver output until all drivers have ended; with ``until_stopped``, or the batch is stopped."""
        token = _DELIVERIES.set((*self._outer, self))
        try:
            while (event := self._next(until_stopped)) is not None:
                self._is_event_deferred = event.is_deferred
                self._deliver(event.packed)
                with self._turn:
                    self._delivered_count += 1
                    self._turn.notify_all()
        finally:
            _DELIVERIES.reset(token)
            self.close()

    def close(self) -> None:
        """Deliver nothing more, and let no driver wait for it."""
        with self._turn:
            self._is_closed = True
            self._turn.notify_all()

    def _append(self, events: Sequence[Part], *, is_deferred: bool = False) -> None:
        if self._is_closed:
            return
        self._pending.extend(_OutputEvent(event, is_deferred) for event in events)
        self._put_count += len(events)
        self._pending_bytes += sum(map(len, events))
        self._turn.notify_all()

    def _next(self, until_stopped: bool) -> _OutputEvent | None:
        """Return the next event; None after the last, when nothing more is accepted."""
        with self._turn:
            while not self._pending:
                if not self._drivers or (until_stopped and self._stopped()):
                    self._is_closed = True
                    return None
                self._turn.wait(POLL_S if until_stopped else SIGNAL_POLL_S)
            event = self._pending.popleft()
            self._pending_bytes -= len(event.packed)
            return event

    def _deliver(self, packed: Part) -> None:
        try:
            kind, content = unpack([packed])
        except Exception as error:
            _LOGGER.debug("output of a worker cannot be unpickled: %r", error)
            return
        if kind == "log" and self._defer(packed):
            return
        try:
            _deliver_here(kind, content)
        except Exception as error:
            self._report(kind, error)

    def _defer(self, packed: Part) -> bool:
        """Leave a record to a thread whose handler runs this batch: it holds the lock of that handler."""
        here = threading.get_ident()
        other = next((delivery for delivery in self._outer if delivery.thread != here), None)
        return other is not None and other.defer(packed)

    def _report(self, kind: str, error: Exception) -> None:
        """Write the traceback to stderr, as ``logging`` does; once for each type."""
        signature = kind, type(error)
        if not logging.raiseExceptions or signature in self._reported:
            return
        self._reported.add(signature)
        target = {"log": "a log handler", "warning": "the display of warnings"}.get(kind, f"sys.{kind}")
        lines = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        text = (
            f"[processes] output of a task is lost: {target} of this program raised {type(error).__name__}."
            f" The batch goes on; further errors of this type are not shown. Repair it, or set"
            f" logging.raiseExceptions = False.\n{lines}"
        )
        stream = sys.__stderr__ if kind == "stderr" else sys.stderr
        with contextlib.suppress(Exception):
            if stream is not None:
                stream.write(text)


def _deliver_here(kind: str, content: Any) -> None:
    if kind == "log":
        record = logging.makeLogRecord(content)
        logging.getLogger(record.name).handle(record)
    elif kind == "warning":
        _show_here(*content)
    else:
        stream: TextIO | None = getattr(sys, kind)
        if stream is not None:
            stream.write(content)


def _show_here(
    message: Warning | str, category: type[Warning], filename: str, line: int, module: str
) -> None:
    """Show a warning unless the filters of this process, or that it was shown before, are against it."""
    globals_here = vars(sys.modules[module]) if module in sys.modules else _FOREIGN
    registry = globals_here.setdefault("__warningregistry__", {})
    with contextlib.suppress(Warning):  # the filters have changed: a worker raises errors itself
        warnings.warn_explicit(message, category, filename, line, module, registry)
