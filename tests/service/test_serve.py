"""``accelera serve`` as a user runs it: it says where, answers, and ends cleanly with all it started."""

from __future__ import annotations

import importlib
import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from accelera.errors import ArgumentError
from accelera.service import ServiceLimits, ServiceSettings, create_app
from accelera.service.database import Database, sqlite_url
from accelera.service.jobs import JobQueue
from accelera.service.server import listening, serve
from accelera.service.settings import read_limits
from tests.service.asking import TestClient
from tests.service.conftest import PATIENCE_S
from tests.service.processes import gone

TOKEN = "a token that nobody guesses"


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """Run the command with a database of its own; yield the process and the addresses it prints."""
    command = [sys.executable, "-m", "accelera", "serve", "--json", "--db", f"sqlite:///{folder / 'c.db'}"]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True, cwd=folder)
    assert process.stdout is not None
    try:
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def answer(url: str, token: str = "") -> Any:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
        return reply.read()


def ended(process: subprocess.Popen[str], number: int) -> int:
    """Send a signal and return the exit code; nothing that the process started is left."""
    started = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    code = process.wait(PATIENCE_S)
    _, alive = psutil.wait_procs(started, timeout=PATIENCE_S)
    assert not alive
    return code


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "term"])
def test_service_ends_cleanly(tmp_path: Path, number: int) -> None:
    with serving(tmp_path) as (process, places):
        assert json.loads(answer(places["url"] + "/health"))["status"] == "ok"
        assert ended(process, number) in (0, -number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "term"])
def test_service_ends_cleanly_while_it_starts(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    opened: list[Database] = []

    def open_slowly(url: str, **options: Any) -> Database:
        signal.raise_signal(number)
        opened.append(Database(url, **options))
        return opened[0]

    monkeypatch.setattr("accelera.service.app.Database", open_slowly)
    serve(ServiceSettings(), lambda _: None)
    (database,) = opened
    assert not Path(database.engine.url.database or "").exists(), "its folder has gone with it"
    monkeypatch.undo()
    with TestClient(create_app()) as client:
        job = client.post("/v1/sweeps", json={"source": {"num_layers": 2}}).headers["location"]
        assert "event: done" in client.get(f"{job}/events").text, "the next service of the process streams"


def test_pages_start_and_end_with_the_service(tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN + "\n")
    with serving(tmp_path, "--ui", "--token-file", str(token_file)) as (process, places):
        assert answer(places["ui"] + "/_stcore/health") == b"ok"
        assert json.loads(answer(places["url"] + "/v1/traces", TOKEN)) is not None
        with pytest.raises(urllib.error.HTTPError, match="401"):
            answer(places["url"] + "/v1/traces")
        commands = [child.cmdline() for child in psutil.Process(process.pid).children(recursive=True)]
        assert not any(TOKEN in word for words in commands for word in words)
        assert ended(process, signal.SIGINT) == 0


def test_nobody_else_is_given_the_port_of_pages_that_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(service: str, token: str, host: str, port: int) -> str:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((host, port))
        listening(host, port).close()  # as the pages do
        return f"for {service}"

    monkeypatch.setattr("accelera.ui.start", start)
    command = importlib.import_module("accelera.cli.serve")
    with ExitStack() as ending:
        port = command._reserve_port(ending, "127.0.0.1", 0)
        process, place = command._start_pages("http://[::]:1", "", "127.0.0.1", port)
    assert process == "for http://[::1]:1"
    assert place == f"http://127.0.0.1:{port}"


def test_pages_end_with_a_service_that_is_killed(tmp_path: Path) -> None:
    with serving(tmp_path, "--ui") as (process, places):
        started = psutil.Process(process.pid).children(recursive=True)
        assert answer(places["ui"] + "/_stcore/health") == b"ok"
        process.kill()
        process.wait(PATIENCE_S)
        assert not gone(started)
        listening("127.0.0.1", int(places["ui"].rpartition(":")[2])).close()


def refusal_of(*options: str, folder: Path | None = None) -> str:
    """Return what a service that cannot start says: without a traceback, and it ends with 2."""
    ran = subprocess.run(
        [sys.executable, "-m", "accelera", "serve", *options],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        cwd=folder,
    )
    assert ran.returncode == 2
    assert "Traceback" not in ran.stderr
    return ran.stderr


def test_a_taken_port_of_the_pages_is_told_in_a_line_and_no_job_is_claimed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/d.db"
    database = Database(url)
    queue = JobQueue(database)
    id = queue.submit("bounds", {"source": {}, "capacities": ["50%"]})
    with listening("127.0.0.1", 0) as other:
        port = str(other.getsockname()[1])
        told = refusal_of("--ui", "--ui-port", port, "--db", url)
    assert f"{port} cannot be listened on" in told
    assert "--ui-port 0" in told
    job = queue.find(id)
    assert job is not None
    assert (job.state, job.attempt) == ("queued", 0)
    database.close()


def test_a_start_that_fails_takes_no_job(tmp_path: Path) -> None:
    database = Database(sqlite_url(tmp_path / "c.db"))
    queue = JobQueue(database)
    id = queue.submit("bounds", {"source": {}, "capacities": ["50%"]})
    app = create_app(ServiceSettings(database_url=database.url))

    def fail() -> None:
        time.sleep(0.5)  # more than the workers take to look for a job
        raise RuntimeError("not up")

    app.state.on_ready = fail
    with pytest.raises(RuntimeError, match="not up"), TestClient(app):
        pass
    job = queue.find(id)
    assert job is not None
    assert (job.state, job.attempt) == ("queued", 0)
    database.close()


def test_address_that_is_taken(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, places):
        port = places["url"].rpartition(":")[2]
        told = refusal_of("--port", port, "--db", f"sqlite:///{tmp_path}/d.db")
        assert f"{port} cannot be listened on" in told


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--host", "0.0.0.0"], "--token-file"),
        (["--token-file", "absent"], "cannot be read"),
        (["--db", "oracle://x"], "sqlite and postgresql are known"),
        (["--db", "nonsense"], "cannot be read"),
        (["--db", "sqlite:////no/such/folder/c.db"], "cannot be opened"),
        (["--db", "postgresql://nobody@127.0.0.1:1/none"], "cannot be opened"),
    ],
)
def test_what_cannot_be_served(options: list[str], told: str, tmp_path: Path) -> None:
    assert told in " ".join(refusal_of(*options, folder=tmp_path).split())


def test_limits_come_from_a_file(tmp_path: Path) -> None:
    limits = tmp_path / "limits.json"
    limits.write_text('{"body_bytes": 100, "job_s": 1200, "requests_per_minute": null}')
    with serving(tmp_path, "--limits", str(limits)) as (_, places):
        with pytest.raises(urllib.error.HTTPError, match="413") as refused:
            urllib.request.urlopen(places["url"] + "/v1/fit", data=b" " * 101, timeout=PATIENCE_S)
        refused.value.close()
    assert read_limits(limits) == ServiceLimits(body_bytes=100, job_s=1200)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"job_seconds": 1}', "there is no limit 'job_seconds'; did you mean job_s"),
        ('{"xyzzy": 1}', "known: requests_per_minute, concurrent_requests"),
        ('{"job_s": "1"}', "the limit job_s is '1'; give a number of 0 or more"),
        ('{"job_s": NaN}', "the limit job_s is nan"),
        ('{"uploads": 1.5}', "the limit uploads is 1.5; give a whole number of 0 or more"),
        ('{"uploads": -1}', "the limit uploads is -1"),
        ('{"uploads": true}', "the limit uploads is True"),
        ('{"uploads": null}', "the limit uploads is None"),
        ("[]", "no JSON object"),
        ("{", "cannot be read"),
    ],
)
def test_limits_that_cannot_be_meant(content: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "limits.json"
    file.write_text(content)
    with pytest.raises(ArgumentError, match=re.escape(told)):
        read_limits(file)
