"""A server of a folder on 127.0.0.1 that answers requests for ranges and counts the bytes that it sends."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_BLOCK_BYTES = 32 << 10


class RangeServer(ThreadingHTTPServer):
    """Files of ``folder``; ``mode`` is "ranges", "whole" files, "cut" bodies or "fail" (status 500)."""

    daemon_threads = True
    mode = "ranges"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sizes: list[int] = []
        self.tag = "1"
        self.encodings: set[str | None] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: clients close connections of cut bodies."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: RangeServer

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self.server.encodings.add(self.headers.get("Accept-Encoding"))
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        path = self.server.folder / self.path.partition("?")[0].lstrip("/")
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if not path.is_file() or self.server.mode == "fail":
            self._send_head(500 if path.is_file() else 404, {"Content-Length": "0"})
            return
        size = path.stat().st_size
        headers, code, span = {"ETag": f'"{self.server.tag}"'}, 200, range(size)
        if wanted and self.server.mode != "whole":
            code, span = 206, range(int(wanted[1]), min(int(wanted[2]) + 1, size))
            headers["Content-Range"] = f"bytes {span.start}-{span.stop - 1}/{size}"
        self._send_head(code, {**headers, "Content-Length": str(len(span))})
        if with_body:
            self.close_connection = self.server.mode == "cut"
            self._send_body(path, span[: len(span) // 2] if self.close_connection else span)

    def _send_head(self, code: int, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _send_body(self, path: Path, span: range) -> None:
        self.server.sizes.append(len(span))
        with path.open("rb") as file:
            file.seek(span.start)
            for start in range(0, len(span), _BLOCK_BYTES):
                self.wfile.write(file.read(min(_BLOCK_BYTES, len(span) - start)))


@contextmanager
def serving(folder: Path) -> Iterator[RangeServer]:
    """Serve a folder for as long as the context lasts."""
    with RangeServer(folder) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(10)
