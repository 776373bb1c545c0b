"""Parser of uploads: sends each to a child of the parser process, which replies with facts or an error."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import socket
import subprocess
import sys
import threading
from http import HTTPStatus
from typing import Any, final

from accelera.service.parser_process import BEGUN, ENVIRONMENT, MEMORY_BYTES, SECONDS
from accelera.service.problems import Problem, too_large
from accelera.settings import passed_on

LOG = logging.getLogger("accelera.service")
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "TMPDIR")
"""Environment variables that the parser process inherits; the others may hold secrets."""
_TIMEOUT_S = 2.0 * SECONDS + 10
_ATTEMPTS = 2
_EXIT_TIMEOUT_S = 10.0
"""Seconds to wait for a killed parser process to exit, before its request is sent again."""


@final
class UploadParser:
    """Parses uploads in processes of their own, any number of threads at once.

    ``most_accesses`` is the limit on the accesses of a trace.
    """

    def __init__(self, most_accesses: int) -> None:
        self._most_accesses = most_accesses
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        """Id of the parser process; None when none has been started."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the parser process unless it runs; it is started again when it is found dead."""
        with self._lock:
            self._running_process()

    def close(self) -> None:
        """End the parser process and all that it parses."""
        with self._lock:
            self._end()

    def parse(self, upload: int, format: str, name: str, out: int) -> dict[str, Any]:
        """Parse the file of the descriptor ``upload``, write it to that of ``out`` as Parquet.

        Returns what the trace holds. Raises Problem: 422 for what is no trace, 413 for what is too long or
        takes more memory or time than the limits, 503 when no process can be started.
        """
        request = {"format": format, "name": name, "most_accesses": self._most_accesses}
        message = json.dumps(request).encode()
        for _ in range(_ATTEMPTS):
            process, reply = self._send_request(message, upload, out)
            if reply.strip():
                return self._facts(json.loads(reply))
            if reply == BEGUN:
                raise _over_limits()
            _wait_for_exit(process)
        raise Problem(
            HTTPStatus.SERVICE_UNAVAILABLE, "no process can be had to read uploads; try again later"
        )

    def _send_request(self, message: bytes, upload: int, out: int) -> tuple[subprocess.Popen[bytes], bytes]:
        """Return the parser process and the child's reply: ``BEGUN`` alone when the child was killed.

        The reply is empty when there was no child: then the parser process has ended, or is about to.
        """
        reading, writing = os.pipe()
        try:
            with self._lock:
                process, control = self._running_process()
                try:
                    socket.send_fds(control, [message], [upload, out, writing])
                except OSError:
                    return process, b""
                finally:
                    os.close(writing)
            return process, _read_reply(reading)
        finally:
            os.close(reading)

    def _running_process(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        if self._process is not None and self._control is not None and self._process.poll() is None:
            return self._process, self._control
        self._end()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "accelera.service.parser_process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**passed_on(*_PASSED_ON), **ENVIRONMENT},
                start_new_session=True,  # Ctrl-C is for the service, which then ends this one
            )
        self._control = ours
        return self._process, ours

    def _end(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            try:
                self._process.wait(_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def _facts(self, reply: dict[str, Any]) -> dict[str, Any]:
        if "facts" in reply:
            facts: dict[str, Any] = reply["facts"]
            return facts
        if "refused" in reply:
            raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, reply["refused"])
        if "accesses" in reply:
            raise too_large(
                "accesses of the trace", reply["accesses"], self._most_accesses, "cut it into parts"
            )
        if "rows" in reply:
            raise too_large("rows of the file", reply["rows"], reply["most_rows"], "cut it into parts")
        if "fault" in reply:
            LOG.error("an upload met a fault of its reader:\n%s", reply["fault"])
            raise Problem(
                HTTPStatus.UNPROCESSABLE_ENTITY, f"the upload cannot be read as a trace ({reply['kind']})"
            )
        if "busy" in reply:
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "no process can be had; try again in a moment")
        raise _over_limits()


def _wait_for_exit(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process that is about to exit: it closes its descriptors a little earlier."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_EXIT_TIMEOUT_S)


def _read_reply(descriptor: int) -> bytes:
    """Return the bytes read until the other end is closed; ``BEGUN`` after a timeout."""
    content = b""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    while True:
        if not poller.poll(_TIMEOUT_S * 1000):
            return BEGUN
        part = os.read(descriptor, 1 << 16)
        if not part:
            return content
        content += part


def _over_limits() -> Problem:
    return Problem(
        HTTPStatus(413),
        f"the upload takes more than {MEMORY_BYTES >> 20} MiB of memory or {SECONDS} s to read; cut it into "
        "parts",
        limit=MEMORY_BYTES,
    )
