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
"""Of a request's line and headers."""
REQUEST_S = 30.0
"""In which a request has to be there, beyond what its bytes take at the least rate."""
LEAST_RATE = 64 << 10
"""Bytes a second of a body that takes longer."""
MOST_CONNECTIONS = 4096
_SPARE_FILES = 256


class PatientProtocol(_Protocol):
    """HTTP connection that is closed when its request does not come.

    A request whose bytes come slower than ``LEAST_RATE`` for longer than ``REQUEST_S`` ends its connection,
    and so does one whose head is longer than ``HEAD_BYTES`` (431). What is no HTTP is answered with a problem
    (400), and connections beyond the most (503).
    """

    _deadline: asyncio.TimerHandle | None = None
    _head = 0
    _received = 0

    def connection_made(self, transport: Any) -> None:
        """Wait for a first request, unless there are too many who do."""
        super().connection_made(transport)
        most = _most_connections()
        if len(self.connections) > most:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, f"{most:,} connections, the most at once", most)
            return
        self._expect()

    def data_received(self, data: bytes) -> None:
        """Take what comes; stop waiting when a request is there in full."""
        if self.transport.is_closing():
            return
        before, had_head = self._request(), self._has_head()
        if not had_head:
            end = data.find(b"\r\n\r\n")
            self._head += len(data) if end < 0 else end
            if self._head > HEAD_BYTES:
                detail = f"bytes of the head: more than {HEAD_BYTES:,}; send shorter headers"
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, detail, HEAD_BYTES)
                return
        super().data_received(data)
        self._received += len(data)
        if not self._has_head() and (had_head or self._request() is not before):
            self._stop_expecting()
        else:
            self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._stop_expecting()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP."""
        self._refuse(HTTPStatus.BAD_REQUEST, msg)

    def _request(self) -> Any:
        """Return the latest request whose head has come; None before the first."""
        return self.cycle

    def _has_head(self) -> bool:
        """Return whether the latest request's body is not there in full."""
        request = self._request()
        return request is not None and bool(request.more_body)

    def _expect(self) -> None:
        if self._deadline is None:
            self._received = 0
            self._deadline = self.loop.call_later(REQUEST_S, self._look, self.loop.time())

    def _look(self, began: float) -> None:
        """Close the connection, unless enough has come to wait on."""
        self._deadline = None
        seconds = self.loop.time() - began
        if self._has_head() and self._received >= (seconds - REQUEST_S / 2) * LEAST_RATE:
            self._deadline = self.loop.call_later(REQUEST_S, self._look, began)
        elif not self.transport.is_closing():
            self.transport.abort()

    def _stop_expecting(self) -> None:
        self._head = 0
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
