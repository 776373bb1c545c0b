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
from accelera.service.connections import PatientProtocol
from accelera.service.database import Database
from accelera.service.settings import ServiceSettings

_END_S = 3
"""How long open replies, such as event streams, may take to end."""


class _Server(uvicorn.Server):
    """A server that says at once that it is to end, so that event streams do."""

    def __init__(self, config: uvicorn.Config, ending: Callable[[], None]) -> None:
        super().__init__(config)
        self._ending = ending

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Say so, then end as usual; the signal is not raised again at the end, where callers tidy up."""
        self._ending()
        super().handle_exit(sig, frame)
        self._captured_signals.clear()


def serve(settings: ServiceSettings, tell: Callable[[str], None]) -> None:
    """Serve until Ctrl-C or SIGTERM; ``tell`` hears the address once, when requests are answered.

    Raises ArgumentError where the address is taken or the database cannot be opened, ClusterError where no
    Ray cluster answers.
    """
    if settings.database_url:
        _check_database(settings.database_url)
    with ExitStack() as ending:
        if settings.ray_address:  # here, where a refusal is no failure of the application
            ending.enter_context(RayCluster(settings.ray_address))
        app = create_app(settings)
        listener = ending.enter_context(listening(settings.host, settings.port))
        config = uvicorn.Config(
            app,
            http=PatientProtocol,
            ws="none",
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=_END_S,
            server_header=False,
        )
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        app.state.on_ready = lambda: tell(f"http://{shown}:{port}")
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
