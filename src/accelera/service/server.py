"""Server process: listens, says where, and ends cleanly on Ctrl-C."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType

import uvicorn
from sqlalchemy.exc import SQLAlchemyError

from accelera.errors import ArgumentError
from accelera.execution import RayCluster
from accelera.service.app import create_app
from accelera.service.connections import RequestTimeoutProtocol
from accelera.service.database import Database
from accelera.service.settings import ServiceSettings

_SHUTDOWN_S = 3
"""Seconds that open replies, such as event streams, get to end at shutdown."""


class _Server(uvicorn.Server):
    """Server that calls ``on_exit`` as soon as a signal arrives, so that event streams end."""

    def __init__(self, config: uvicorn.Config, on_exit: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_exit = on_exit

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Call ``on_exit``, then shut down; the signal is not raised again, so that callers can clean up."""
        self._on_exit()
        super().handle_exit(sig, frame)
        self._captured_signals.clear()


def serve(settings: ServiceSettings, on_ready: Callable[[str], None]) -> None:
    """Serve until Ctrl-C or SIGTERM; ``on_ready`` is called with the URL once requests are answered.

    Raises ArgumentError where the address is taken or the database cannot be opened, ClusterError where no
    Ray cluster answers.
    """
    if settings.database_url:
        _check_database(settings.database_url)
    with ExitStack() as stack:
        if settings.ray_address:  # checked here: an error in the application would be a failed start
            stack.enter_context(RayCluster(settings.ray_address))
        app = create_app(settings)
        listener = stack.enter_context(listening(settings.host, settings.port))
        config = uvicorn.Config(
            app,
            http=RequestTimeoutProtocol,
            ws="none",
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=_SHUTDOWN_S,
            server_header=False,
        )
        host, port = listener.getsockname()[:2]
        shown_host = f"[{host}]" if ":" in host else host
        app.state.on_ready = lambda: on_ready(f"http://{shown_host}:{port}")
        _Server(config, lambda: app.state.stopping.set()).run(sockets=[listener])


def _check_database(url: str) -> None:
    """Open the database once, so that its errors are shown before anything starts."""
    try:
        Database(url).close()
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", error)).strip().splitlines()[0]
        raise ArgumentError(
            f"[serve] the database cannot be opened: {reason}; --db names it, as sqlite:///FILE or "
            "postgresql://USER@HOST/NAME"
        ) from error


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens; raises ArgumentError where the address is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio sends small writes at once; else each reply waits 40 ms for an ACK.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise ArgumentError(
            f"[serve] {host}:{port} cannot be listened on: {error.strerror}; --port 0 takes a free one"
        ) from error
    return listener
