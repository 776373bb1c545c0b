"""Parser of uploads: sends each to a child of the parser process, and turns what comes back into a reply."""

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
"""Variables that the parser process gets; the others may hold secrets."""
_PATIENCE_S = 2.0 * SECONDS + 10
_TRIES = 2
_ENDING_S = 10.0
"""How long a parser process that was killed may take to die until its request is tried once more."""


@final
class UploadParser:
    """Parses uploads in processes of their own, any number of threads at once.

    ``most_accesses`` is how long a trace may be.
    """

    def __init__(self, most_accesses: int) -> None:
        self._most_accesses = most_accesses
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        """The parser process, as far as one has been started."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the parser process unless it runs; it is started again when it is found dead."""
        with self._lock:
            self._started()

    def close(self) -> None:
        """End the parser process and all that it parses."""
        with self._lock:
            self._end()

    def parse(self, upload: int, format: str, name: str, out: int) -> dict[str, Any]:
        """Parse the file of the descriptor ``upload``, write it to that of ``out`` as Parquet.

        Returns what the trace holds. Raises Problem: 422 for what is no trace, 413 for what is too long or
        takes more memory or time than is given, 503 when no process can be had.
        """
        request = {"format": format, "name": name, "most_accesses": self._most_accesses}
        message = json.dumps(request).encode()
        for _ in range(_TRIES):
            process, answer = self._asked(message, upload, out)
            if answer.strip():
                return self._facts(json.loads(answer))
            if answer == BEGUN:
                raise _too_much()
            _await_end(process)
        raise Problem(
            HTTPStatus.SERVICE_UNAVAILABLE, "no process can be had to read uploads; try again later"
        )

    def _asked(self, message: bytes, upload: int, out: int) -> tuple[subprocess.Popen[bytes], bytes]:
        """Return the parser process and the child's answer: ``BEGUN`` alone when the child was ended.

        It is empty when there was no child: then the parser process has ended, or is about to.
        """
        reading, writing = os.pipe()
        try:
            with self._lock:
                process, control = self._started()
                try:
                    socket.send_fds(control, [message], [upload, out, writing])
                except OSError:
                    return process, b""
                finally:
                    os.close(writing)
            return process, _all_of(reading)
        finally:
            os.close(reading)

    def _started(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
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
                self._process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def _facts(self, answer: dict[str, Any]) -> dict[str, Any]:
        if "facts" in answer:
            facts: dict[str, Any] = answer["facts"]
            return facts
        if "refused" in answer:
            raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, answer["refused"])
        if "accesses" in answer:
            raise too_large(
                "accesses of the trace", answer["accesses"], self._most_accesses, "cut it into parts"
            )
        if "rows" in answer:
            raise too_large("rows of the file", answer["rows"], answer["most_rows"], "cut it into parts")
        if "fault" in answer:
            LOG.error("an upload met a fault of its reader:\n%s", answer["fault"])
            raise Problem(
                HTTPStatus.UNPROCESSABLE_ENTITY, f"the upload cannot be read as a trace ({answer['kind']})"
            )
        if "busy" in answer:
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "no process can be had; try again in a moment")
        raise _too_much()


def _await_end(process: subprocess.Popen[bytes]) -> None:
    """Wait a while for a process that is about to end: its descriptors are closed before."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_ENDING_S)


def _all_of(descriptor: int) -> bytes:
    """Return what is written until the other end is closed, ``BEGUN`` when that takes too long."""
    found = b""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    while True:
        if not waiting.poll(_PATIENCE_S * 1000):
            return BEGUN
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            return found
        found += piece


def _too_much() -> Problem:
    return Problem(
        HTTPStatus(413),
        f"the upload takes more than {MEMORY_BYTES >> 20} MiB of memory or {SECONDS} s to read; cut it into "
        "parts",
        limit=MEMORY_BYTES,
    )
