"""Text, log records and warnings of tasks in workers, for the streams and handlers of the caller."""

from __future__ import annotations

import io
import logging
import sys
import threading
import traceback
import warnings
from collections.abc import Sequence
from typing import Any, Final, TextIO, final

from accelera.execution.executors.processes.messages import MessageSocket, Part, pack, unpack

_EVENT: Final = b"events"
"""The first part of a message that is no reply."""
_OWN_FIELDS: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


def is_output(parts: Sequence[Part]) -> bool:
    """Return whether a message of a worker is output of its tasks, and not its reply."""
    return parts[0] == _EVENT


def deliver_output(parts: Sequence[Part]) -> None:
    """Write, log and show here what the message of a worker holds."""
    for kind, content in unpack(parts[1:]):
        if kind == "log":
            record = logging.makeLogRecord(content)
            logging.getLogger(record.name).handle(record)
        elif kind == "warning":
            warnings.showwarning(*content)
        else:
            stream: TextIO | None = getattr(sys, kind)
            if stream is not None:
                stream.write(content)


@final
class OutputSender:
    """Sends what happens in a worker to the process that gave it its tasks. Thread-safe.

    Parameters
    ----------
    wire
        The connection; nothing else writes to it.
    """

    def __init__(self, wire: MessageSocket) -> None:
        self._wire = wire
        self._lock = threading.RLock()  # a signal handler may print while it is held
        self._waiting: list[tuple[str, Any]] = []
        self._is_awaited = False

    def begin(self) -> None:
        """Send from now on: the other side waits for a reply."""
        with self._lock:
            self._is_awaited = True

    def put(self, kind: str, content: Any) -> None:
        """Send ``content``: text for ``"stdout"`` or ``"stderr"``, a ``"log"`` record or a ``"warning"``.

        At once, since the process may die; between two requests it waits for the next.
        """
        with self._lock:
            self._waiting.append((kind, content))
            if self._is_awaited:
                self._send_waiting()

    def reply(self, parts: Sequence[Part]) -> None:
        """Send a reply, and before it what was put."""
        with self._lock:
            self._send_waiting()
            self._is_awaited = False
            self._wire.send(parts)

    def _send_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            # The shared memory is for the reply, which may come before the other side has read this.
            self._wire.send([_EVENT, *pack(waiting)], through_room=False)


@final
class WorkerOutput:
    """The streams, log handler and display of warnings of a worker process."""

    def __init__(self, sender: OutputSender) -> None:
        self._sender = sender
        self._streams = {name: _CapturedStream(sender, name) for name in ("stdout", "stderr")}
        logging.root.addHandler(_SendingHandler(sender))
        warnings.showwarning = self._show_warning

    def capture(self, stdout: bool, stderr: bool) -> None:
        """Send what is written to the streams, or let it go where the program's own output goes."""
        sys.stdout = self._streams["stdout"] if stdout else sys.__stdout__
        sys.stderr = self._streams["stderr"] if stderr else sys.__stderr__

    def flush(self) -> None:
        """Write what the streams hold."""
        for stream in (sys.__stdout__, sys.__stderr__, *self._streams.values()):
            if stream is not None:
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
        try:
            pack((message, category))
        except Exception:
            message, category = str(message), UserWarning
        self._sender.put("warning", (message, category, filename, lineno))


class _CapturedStream(io.TextIOBase):
    """A text stream of a worker that writes whole lines to the caller's, which several workers share."""

    def __init__(self, sender: OutputSender, name: str) -> None:
        self._sender = sender
        self._name = name
        self._lock = threading.RLock()
        self._begun_line = ""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        with self._lock:
            lines, newline, self._begun_line = (self._begun_line + text).rpartition("\n")
            if newline:
                self._sender.put(self._name, lines + newline)
        return len(text)

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


def _can_be_sent(value: Any) -> bool:
    try:
        pack(value)
    except Exception:
        return False
    return True
