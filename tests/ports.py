"""Ports for tests: held for as long as they are needed, so that nobody else is given them meanwhile."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port() -> Iterator[int]:
    """Yield a port of 127.0.0.1 that refuses connections until a program that is told it listens there.

    It stays bound here without listening. The kernel then gives it to nobody who asks for a free one, while a
    server that sets SO_REUSEADDR, as all do, may still listen on it.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])
