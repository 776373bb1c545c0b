"""Databases for the tests: SQLite in a file, and a PostgreSQL that the tests start where it is installed."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from accelera.service import create_app
from accelera.service.database import Database, sqlite_url
from tests.ports import reserved_port
from tests.service.asking import TestClient

PATIENCE_S = 600
"""Seconds after which what does not answer is taken to hang: a machine may be busy."""


def _programs() -> Path | None:
    """Return the folder of PostgreSQL's programs: Debian keeps them off the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)
    if found:
        return found[0].parent
    there = shutil.which("initdb")
    return Path(there).resolve().parent if there else None


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """Return the URL of a server, without the name of a database; it refuses to be run by root."""
    programs = _programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed: apt install postgresql")
    options: dict[str, Any] = {}
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    if os.geteuid() == 0:
        try:
            user = pwd.getpwnam("postgres")
        except KeyError:
            pytest.skip("PostgreSQL refuses to be run by root, and there is no user postgres")
        os.chown(folder, user.pw_uid, user.pw_gid)
        options = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
    data = folder / "data"
    subprocess.run(
        [programs / "initdb", "-A", "trust", "-U", "tests", "--no-sync", "-D", data],
        check=True,
        **options,
        **quiet,
    )
    settings = [
        "listen_addresses=127.0.0.1",
        f"unix_socket_directories={folder}",
        "fsync=off",
        "max_connections=50",
    ]
    given = [word for each in settings for word in ("-c", each)]
    with reserved_port() as port:
        server = subprocess.Popen(
            [programs / "postgres", "-D", data, "-p", str(port), *given], **options, **quiet
        )
        try:
            url = f"postgresql+psycopg://tests@127.0.0.1:{port}"
            _await(url, server)
            yield url
        finally:
            server.send_signal(signal.SIGINT)  # its fast way to end, which waits for no client
            server.wait(300)
            shutil.rmtree(folder, ignore_errors=True)


def _await(url: str, server: subprocess.Popen[bytes]) -> None:
    import psycopg

    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            psycopg.connect(url.replace("+psycopg", "") + "/postgres").close()
        except psycopg.OperationalError:  # not listening yet, or still starting up
            assert server.poll() is None, "PostgreSQL has ended"
            assert time.monotonic() < until, "PostgreSQL does not answer"
            time.sleep(0.05)
        else:
            return


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    """Return a client of an application with a database of its own."""
    with TestClient(create_app(), raise_server_exceptions=False) as found:
        yield found


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """Return an empty database of either kind."""
    found = Database(database_url(request, tmp_path))
    yield found
    found.close()


def database_url(request: pytest.FixtureRequest, folder: Path) -> str:
    """Return the URL of a new database of the kind that the test asks for."""
    if request.param == "sqlite":
        return sqlite_url(folder / "copilot.db")
    import psycopg

    server = request.getfixturevalue("postgresql")
    name = f"t{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server.replace("+psycopg", "") + "/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]
    return f"{server}/{name}"


@pytest.fixture
def one_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count requests within one minute: what lies in the minute before counts less and less."""
    monkeypatch.setattr("limits.storage.memory.time", SimpleNamespace(time=lambda: 90.0))
