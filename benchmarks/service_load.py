"""Load generator for HTTP: closed-loop clients on connections of their own, in a process of its own.

``python -m benchmarks.service_load`` reads a ``Load`` as JSON from its input and writes its figures as JSON.
A client sends its next request when the reply to the last is there in full. Replies are not parsed beyond
status and length; the generator takes about 30 µs of processor time for each.
"""

from __future__ import annotations

import asyncio
import functools
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

SEED = "SEED"
"""In a body: stands for a number that is used once, or for one of a few."""
_TIMEOUT_S = 300.0


@contextmanager
def served(*options: str) -> Iterator[dict[str, str]]:
    """Serve in processes of their own, with an empty database; yield their addresses by name."""
    with tempfile.TemporaryDirectory() as folder:
        database = f"sqlite:///{Path(folder) / 'copilot.db'}"
        command = [sys.executable, "-m", "accelera", "serve", "--json", "--db", database, *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            try:
                yield json.loads(server.stdout.readline())
            finally:
                server.terminate()


@dataclass(frozen=True)
class Load:
    """Requests to make.

    ``seeds`` bodies differ in their seed and take turns; 0 for a new one each time. It ends after ``seconds``
    or ``requests``, whichever comes first.
    """

    url: str
    path: str
    body: str
    clients: int = 1
    seconds: float = 10.0
    requests: int = 1 << 30
    seeds: int = 0
    first_seed: int = 0


def measured(load: Load) -> dict[str, Any]:
    """Run ``load`` in a process of its own; return its figures, times in milliseconds."""
    command = [sys.executable, "-m", "benchmarks.service_load"]
    process = subprocess.run(
        command, input=json.dumps(asdict(load)), capture_output=True, text=True, check=True
    )
    return cast(dict[str, Any], json.loads(process.stdout))


class _Generator:
    """Makes the requests and counts the replies."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.latencies_s: list[float] = []
        self.statuses: Counter[int] = Counter()
        self.sent = 0
        self.broken = 0
        self.until_s = 0.0
        parts = urlsplit(load.url)
        self._head = (
            f"POST {load.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        )
        self._requests_by_seed: dict[int, bytes] = {}

    def next(self) -> bytes | None:
        """Return the next request; None when it is over."""
        if self.sent >= self.load.requests or time.perf_counter() >= self.until_s:
            return None
        number = self.sent
        self.sent += 1
        if not self.load.seeds:
            return self._request(self.load.first_seed + number)
        seed = self.load.first_seed + number % self.load.seeds
        if seed not in self._requests_by_seed:
            self._requests_by_seed[seed] = self._request(seed)
        return self._requests_by_seed[seed]

    def _request(self, seed: int) -> bytes:
        body = self.load.body.replace(SEED, str(seed))
        return f"{self._head}Content-Length: {len(body)}\r\n\r\n{body}".encode()

    async def run(self) -> dict[str, Any]:
        """Make all requests; return the figures."""
        parts = urlsplit(self.load.url)
        loop = asyncio.get_running_loop()
        began = time.perf_counter()
        self.until_s = began + self.load.seconds
        ends = [loop.create_future() for _ in range(self.load.clients)]
        for end in ends:
            await loop.create_connection(
                functools.partial(_Client, self, end), parts.hostname or "", parts.port or 80
            )
        await asyncio.wait(ends, timeout=self.load.seconds + _TIMEOUT_S)
        return self._figures(time.perf_counter() - began)

    def _figures(self, seconds: float) -> dict[str, Any]:
        times = sorted(1e3 * each for each in self.latencies_s)
        share = {f"p{p}_ms": times[min(len(times) - 1, len(times) * p // 100)] for p in (50, 90, 99)}
        good = self.statuses[200]
        return {
            "clients": self.load.clients,
            "requests": self.sent,
            "seconds": seconds,
            "per_second": good / seconds,
            **share,
            "most_ms": times[-1],
            "statuses": dict(self.statuses),
            "error_rate": 1 - good / self.sent,
            "lost": self.sent - sum(self.statuses.values()),
            "broken_connections": self.broken,
        }


class _Client(asyncio.Protocol):
    """One connection."""

    def __init__(self, generator: _Generator, closed: asyncio.Future[None]) -> None:
        self._generator = generator
        self._closed = closed
        self._buffer = bytearray()
        self._missing = -1
        self._began = 0.0
        self._status = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        if self._missing >= 0:
            self._missing -= len(data)
        else:
            self._buffer += data
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            self._read_head(end)
        if self._missing == 0:
            self._generator.latencies_s.append(time.perf_counter() - self._began)
            self._generator.statuses[self._status] += 1
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closed.done():
            self._generator.broken += 1
            self._closed.set_result(None)

    def _read_head(self, end: int) -> None:
        head = bytes(self._buffer[:end]).lower()
        at = head.index(b"content-length:") + 15
        stop = head.find(b"\r\n", at)
        length = int(head[at : stop if stop > 0 else end])
        self._status = int(head[9:12])
        self._missing = length - (len(self._buffer) - end - 4)
        self._buffer.clear()

    def _send(self) -> None:
        request = self._generator.next()
        if request is None:
            self._closed.set_result(None)
            self._transport.close()
            return
        self._missing = -1
        self._began = time.perf_counter()
        self._transport.write(request)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_Generator(Load(**json.load(sys.stdin))).run())))
