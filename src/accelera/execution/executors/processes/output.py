"""Text, log records and warnings of tasks in workers, sent to the process of the caller."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, TextIO, final

from accelera.errors import ArgumentError
from accelera.execution.executors.processes.messages import MessageSocket, Part, pack, unpack

MOST_WAITING: Final = 10_000
"""Records and lines that a worker without a request keeps for the next one, the latest."""
_EVENT: Final = b"events"
"""The first part of a message that is no reply."""
_OWN_FIELDS: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


def is_output(parts: Sequence[Part]) -> bool:
    """Return whether a message of a worker holds output of its tasks instead of a reply."""
    return parts[0] == _EVENT


@final
class OutputSender:
    """Sends the output of a worker to the process of the caller. Thread-safe.

    Parameters
    ----------
    wire
        The connection; nothing else writes to it.
    """

    def __init__(self, wire: MessageSocket) -> None:
        self._wire = wire
        self._lock = threading.RLock()  # a signal handler may print while it is held
        self._waiting: deque[tuple[str, Any]] = deque(maxlen=MOST_WAITING)
        self._is_awaited = False
        self._is_forked = False
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._leave_connection)

    def begin(self) -> None:
        """Send from now on: the other side waits for a reply."""
        with self._lock:
            self._is_awaited = True

    def put(self, kind: str, content: Any) -> None:
        """Send ``content``: text for ``"stdout"`` or ``"stderr"``, a ``"log"`` record or a ``"warning"``.

        At once, since the process may die; between two requests it waits for the next.
        """
        if self._is_forked:
            stream = {"stdout": sys.__stdout__, "stderr": sys.__stderr__}.get(kind)
            if stream is not None:
                stream.write(content)
            return
        with self._lock:
            self._waiting.append((kind, content))
            if self._is_awaited:
                self._send_waiting()

    def reply(self, parts: Sequence[Part]) -> None:
        """Send a reply after the output that waits."""
        with self._lock:
            self._send_waiting()
            self._is_awaited = False
            self._wire.send(parts)

    def _send_waiting(self) -> None:
        events = [part for event in self._waiting for part in pack(event)[:1]]
        self._waiting.clear()
        if events:
            # The shared memory is for the reply, which may come before the other side has read this.
            self._wire.send([_EVENT, *events], through_room=False)

    def _leave_connection(self) -> None:
        """Leave the connection to the worker in a process that a task has forked from it."""
        self._lock = threading.RLock()
        self._is_forked = True


@final
class WorkerOutput:
    """The streams, log handler and display of warnings of a worker process."""

    def __init__(self, sender: OutputSender) -> None:
        self._sender = sender
        self._streams = {name: _CapturedStream(sender, name) for name in ("stdout", "stderr")}
        logging.root.addHandler(_SendingHandler(sender))
        warnings.showwarning = self._show_warning

    def capture(self, stdout: bool, stderr: bool) -> None:
        """Send text to the caller, or write it to the streams that the process began with."""
        sys.stdout = self._streams["stdout"] if stdout else sys.__stdout__
        sys.stderr = self._streams["stderr"] if stderr else sys.__stderr__

    def flush(self) -> None:
        """Write the text that the streams hold."""
        for stream in (sys.__stdout__, sys.__stderr__, *self._streams.values()):
            if stream is not None:
                with contextlib.suppress(OSError, ValueError):  # closed by a task, or without a reader
                    stream.flush()

    def _show_warning(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if file is not None:
            file.write(warnings.formatwarning(message, category, filename, lineno, line))
            return
        if not _can_be_sent((message, category)):
            message, category = str(message), UserWarning
        self._sender.put("warning", (message, category, filename, lineno, _module_that_warns(filename)))


class _CapturedStream(io.TextIOBase):
    """A text stream of a worker that writes whole lines to the caller's, which several workers share."""

    def __init__(self, sender: OutputSender, name: str) -> None:
        self._sender = sender
        self._name = name
        self._lock = threading.RLock()
        self._begun_line = ""
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew_lock)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise ArgumentError(f"write() argument must be str, not {type(text).__name__}")
        with self._lock:
            lines, newline, self._begun_line = (self._begun_line + text).rpartition("\n")
            if newline:
                self._sender.put(self._name, lines + newline)
        return len(text)

    def _renew_lock(self) -> None:
        """Replace the lock in a forked process, where a thread of the parent may have held it."""
        self._lock = threading.RLock()

    def flush(self) -> None:
        with self._lock:
            begun_line, self._begun_line = self._begun_line, ""
            if begun_line:
                self._sender.put(self._name, begun_line)


class _SendingHandler(logging.Handler):
    """Sends records; what of them cannot be pickled is sent as text, or not."""

    def __init__(self, sender: OutputSender) -> None:
        super().__init__()
        self._sender = sender

    def emit(self, record: logging.LogRecord) -> None:
        try:
            content = dict(record.__dict__, msg=record.getMessage(), args=None, exc_info=None)
            if record.exc_info:
                content["exc_text"] = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
            for name in content.keys() - _OWN_FIELDS:
                if not _can_be_sent(content[name]):
                    del content[name]
            self._sender.put("log", content)
        except Exception:
            self.handleError(record)


def _module_that_warns(filename: str) -> str:
    """Return the name of the module whose code in ``filename`` is being run by this thread."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename != filename:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", filename))


def _can_be_sent(value: Any) -> bool:
    """Return whether ``value`` can be pickled and unpickled."""
    try:
        unpack(pack(value))
    except Exception:
        return False
    return True
