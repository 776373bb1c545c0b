"""Limits of connections: a request must arrive in time, and its head has a bounded size."""

from __future__ import annotations

import asyncio
import resource
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from accelera.service.problems import problem_content

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol as _Protocol
else:
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as _Protocol
    except ImportError:
        from uvicorn.protocols.http.h11_impl import H11Protocol as _Protocol

HEAD_BYTES = 32 << 10
"""Most bytes of a request's line and headers."""
REQUEST_S = 30.0
"""Seconds in which a request must arrive, beyond the time that its bytes take at ``LEAST_RATE``."""
LEAST_RATE = 64 << 10
"""Bytes per second at which a body that takes longer than ``REQUEST_S`` must arrive."""
MOST_CONNECTIONS = 4096
_SPARE_FILES = 256


class RequestTimeoutProtocol(_Protocol):
    """HTTP connection that is closed when a request does not arrive in time.

    A request whose bytes arrive slower than ``LEAST_RATE`` for longer than ``REQUEST_S`` ends its connection,
    and so does one whose head is longer than ``HEAD_BYTES`` (431). Data that is no HTTP gets a problem (400)
    as the reply, and so does a connection beyond the most at once (503).
    """

    _deadline: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _received_bytes = 0

    def connection_made(self, transport: Any) -> None:
        """Start the timeout of the first request; refuse the connection when there are too many."""
        super().connection_made(transport)
        most = _most_connections()
        if len(self.connections) > most:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, f"{most:,} connections, the most at once", most)
            return
        self._start_timeout()

    def data_received(self, data: bytes) -> None:
        """Process received bytes; stop the timeout when a request has arrived in full."""
        if self.transport.is_closing():
            return
        request_before, was_receiving = self._latest_request(), self._is_receiving_body()
        if not was_receiving:
            end = data.find(b"\r\n\r\n")
            self._head_bytes += len(data) if end < 0 else end
            if self._head_bytes > HEAD_BYTES:
                detail = f"bytes of the head: more than {HEAD_BYTES:,}; send shorter headers"
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, detail, HEAD_BYTES)
                return
        super().data_received(data)
        self._received_bytes += len(data)
        if not self._is_receiving_body() and (was_receiving or self._latest_request() is not request_before):
            self._stop_timeout()
        else:
            self._start_timeout()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timeout."""
        self._stop_timeout()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Reply with a problem (400) to data that is no HTTP."""
        self._refuse(HTTPStatus.BAD_REQUEST, msg)

    def _latest_request(self) -> Any:
        """Return the latest request whose head has arrived; None before the first."""
        return self.cycle

    def _is_receiving_body(self) -> bool:
        """Return whether the latest request's head has arrived, and its body not yet in full."""
        request = self._latest_request()
        return request is not None and bool(request.more_body)

    def _start_timeout(self) -> None:
        if self._deadline is None:
            self._received_bytes = 0
            self._deadline = self.loop.call_later(REQUEST_S, self._check_rate, self.loop.time())

    def _check_rate(self, began: float) -> None:
        """Close the connection, unless a body is arriving at ``LEAST_RATE`` or faster."""
        self._deadline = None
        seconds = self.loop.time() - began
        if self._is_receiving_body() and self._received_bytes >= (seconds - REQUEST_S / 2) * LEAST_RATE:
            self._deadline = self.loop.call_later(REQUEST_S, self._check_rate, began)
        elif not self.transport.is_closing():
            self.transport.abort()

    def _stop_timeout(self) -> None:
        self._head_bytes = 0
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, status: HTTPStatus, detail: str, limit: int | None = None) -> None:
        content = problem_content(status, detail, **({} if limit is None else {"limit": limit}))
        head = (
            f"HTTP/1.1 {int(status)} {status.phrase}\r\nContent-Type: application/problem+json\r\n"
            f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + content)
        self.transport.close()


def _most_connections() -> int:
    """Return how many connections the limit on open files leaves room for."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if files < 0 else max(16, min(MOST_CONNECTIONS, files - _SPARE_FILES))
