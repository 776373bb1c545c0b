"""Service processes for tests: ``accelera serve`` as a user starts it, to be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

from tests.service.conftest import PATIENCE_S

LONG = os.environ.get("LONG_TESTS") == "1"
"""Whether tests that have a long form are to take it."""


class Server:
    """A running service; ``url`` is where."""

    def __init__(self, database_url: str, *options: str) -> None:
        command = [sys.executable, "-m", "accelera", "serve", "--json", "--db", database_url, *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "it ended before it answered"
        self.url: str = json.loads(line)["url"]
        self._family = psutil.Process(self.process.pid)

    def kill(self) -> list[psutil.Process]:
        """Kill it as the kernel would when memory is short; return the processes that it had started."""
        children = self._family.children(recursive=True)
        self.process.kill()
        self.process.wait(PATIENCE_S)
        self._close()
        for each in children:
            with suppress(psutil.NoSuchProcess):
                each.resume()
        return children

    def signal_children(self, number: signal.Signals) -> None:
        """Send a signal to the processes that it has started."""
        for each in self._family.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                each.send_signal(number)

    def stop(self) -> int:
        """End it as Ctrl-C does; return its exit status."""
        self.process.send_signal(signal.SIGINT)
        status = self.process.wait(PATIENCE_S)
        self._close()
        return status

    def _close(self) -> None:
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def serving(database_url: str, *options: str) -> Iterator[Server]:
    """Serve for as long as the block takes."""
    server = Server(database_url, *options)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()


def gone(processes: list[psutil.Process], within_s: float = PATIENCE_S) -> list[psutil.Process]:
    """Wait until processes have ended; return those that have not."""
    until = time.monotonic() + within_s
    alive = processes
    while alive and time.monotonic() < until:
        alive = [one for one in alive if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
        time.sleep(0.05)
    return alive
