"""``accelera serve``: the Copilot's service."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from accelera._extras import require
from accelera.cli.options import Json
from accelera.errors import ArgumentError

Host = Annotated[
    str, typer.Option(metavar="ADDRESS", help="Where to listen; beyond this machine with a token.")
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="0 for one that is free.")]
DatabaseUrl = Annotated[
    str,
    typer.Option("--db", metavar="URL", help="sqlite:///FILE or postgresql://…; in a file of its own else."),
]
TokenFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="What callers have to send as a bearer token.")
]
PasswordFile = Annotated[
    Path | None,
    typer.Option("--db-password-file", metavar="FILE", help="The database's password, kept out of the URL."),
]
JobCount = Annotated[int, typer.Option("--workers", min=1, max=64, help="Jobs that are done at once.")]
RayAddress = Annotated[
    str,
    typer.Option("--ray", metavar="ADDRESS", help="HOST:6379 of a Ray cluster that does the jobs, or auto."),
]
LimitsFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A JSON object of ServiceLimits: how much one request may ask for."),
]
Pages = Annotated[bool, typer.Option("--ui", help="Start the pages for a browser as well.")]
PagesPort = Annotated[
    int, typer.Option("--ui-port", min=0, max=65535, help="Of the pages; 0 for a free one.")
]

_LOOK_S = 0.1
_END_S = 3
"""Seconds that the pages have to end in."""


def serve(
    host: Host = "127.0.0.1",
    port: Port = 0,
    db: DatabaseUrl = "",
    db_password_file: PasswordFile = None,
    token_file: TokenFile = None,
    workers: JobCount = 1,
    ray: RayAddress = "",
    limits: LimitsFile = None,
    ui: Pages = False,
    ui_port: PagesPort = 0,
    as_json: Json = False,
) -> None:
    """Answer simulations, advice and plans over HTTP, and with --ui in a browser, until Ctrl-C."""
    require("serve", "fastapi", "uvicorn", "sqlalchemy")
    if ui:
        require("serve --ui", "streamlit", "httpx")
    from accelera.service import ServiceSettings
    from accelera.service._internal import USUAL, read_limits, read_token
    from accelera.service._internal import serve as run

    token = "" if token_file is None else read_token(token_file)
    url = _with_password(db or _default_database_url(), db_password_file)
    if ray:
        require("serve --ray", "ray")
    settings = ServiceSettings(
        host=host,
        port=port,
        token=token,
        database_url=url,
        workers=workers,
        ray_address=ray,
        limits=USUAL if limits is None else read_limits(limits),
    )
    with ExitStack() as ending:
        pages_port = _reserve_port(ending, host, ui_port) if ui else 0

        def tell(address: str) -> None:
            """Print the addresses; the pages take seconds to start, and the service runs meanwhile."""
            if not ui:
                _print_places({"url": address}, as_json)
                return
            pages, place = _start_pages(address, token, host, pages_port)
            ending.callback(_end, pages)
            threading.Thread(
                target=_report_pages, args=(pages, {"url": address, "ui": place}, as_json), daemon=True
            ).start()

        run(settings, tell)


def _print_places(places: dict[str, str], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(places))
        return
    typer.echo(f"service at {places['url']}")
    if "ui" in places:
        typer.echo(f"pages at   {places['ui']}")
    typer.echo("Ctrl-C ends.")


def _reserve_port(ending: ExitStack, host: str, port: int) -> int:
    """Return the port of the pages, bound here until ``ending``; raises ArgumentError where it is taken.

    Nobody else is given it while the service and the pages start, and the pages may listen on it, as they
    set SO_REUSEADDR and this socket does not listen.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    holder = ending.enter_context(socket.socket(family, socket.SOCK_STREAM))
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        holder.bind((host, port))
    except OSError as error:
        raise ArgumentError(
            f"[serve] {host}:{port} cannot be listened on: {error.strerror}; --ui-port 0 takes a free one"
        ) from error
    return int(holder.getsockname()[1])


def _start_pages(service: str, token: str, host: str, port: int) -> tuple[subprocess.Popen[bytes], str]:
    """Start the pages beside the service; return their process and their address."""
    from accelera.ui import start

    reached = service.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    shown = f"[{host}]" if ":" in host else host
    return start(reached, token, host, port), f"http://{shown}:{port}"


def _report_pages(pages: subprocess.Popen[bytes], places: dict[str, str], as_json: bool) -> None:
    """Print the address of the pages once they answer, or that they ended."""
    health = places["ui"].replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    while pages.poll() is None:
        try:
            with urllib.request.urlopen(f"{health}/_stcore/health", timeout=1):
                _print_places(places, as_json)
                return
        except OSError:
            time.sleep(_LOOK_S)
    typer.echo(f"the pages ended with exit code {pages.returncode}; the service goes on", err=True)
    _print_places({"url": places["url"]}, as_json)


def _end(pages: subprocess.Popen[bytes]) -> None:
    pages.terminate()
    try:
        pages.wait(_END_S)
    except subprocess.TimeoutExpired:
        pages.kill()
        pages.wait()


def _with_password(url: str, password: Path | None) -> str:
    if password is None:
        return url
    from sqlalchemy.engine import make_url

    from accelera.service._internal import read_token

    return make_url(url).set(password=read_token(password)).render_as_string(hide_password=False)


def _default_database_url() -> str:
    """Return the URL of a file in the user's data folder."""
    from accelera.service._internal import sqlite_url

    base = Path.home() / ".local" / "share" / "accelera"
    base.mkdir(parents=True, exist_ok=True)
    return sqlite_url(base / "copilot.db")
