"""Streams of a job's changes: progress that moves, a reader that comes again, and a service that ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from accelera.service.database import Database, sqlite_url
from accelera.service.jobs import JobQueue
from accelera.service.work import KINDS
from tests.service.asking import ENDLESS, TestClient
from tests.service.conftest import PATIENCE_S

POLICIES = ["lru", "fifo", "clock", "belady"]
SWEEP = {
    "source": {"mode": "training", "num_layers": 24, "steps": 4},
    "policies": POLICIES,
    "capacities": 8,
    "bound": False,
}


def events(text: str) -> list[dict[str, Any]]:
    """Return the events of a stream: their fields, ``data`` as JSON."""
    found = []
    for part in text.replace("\r\n", "\n").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in part.splitlines() if ": " in line and line[0] != ":")
        if fields:
            found.append({**fields, "data": json.loads(fields["data"])})
    return found


def test_a_sweep_tells_its_progress_policy_by_policy(tmp_path: Path) -> None:
    database = Database(sqlite_url(tmp_path / "copilot.db"))
    told: list[tuple[float, str]] = []
    KINDS["sweep"](database, {**SWEEP, "bound": True}, lambda *news: told.append(news))
    database.close()
    assert [progress for progress, _ in told] == [0.0, 0.2, 0.4, 0.6, 0.8]
    assert all(policy in doing for policy, (_, doing) in zip([*POLICIES, "bounding"], told, strict=True))


def test_the_stream_of_a_job_is_read_to_its_end_and_taken_up_again(client: TestClient) -> None:
    job = client.post("/v1/sweeps", json=SWEEP).headers["location"]
    found = events(client.get(f"{job}/events").text)
    assert found[-1]["event"] == "done"
    numbers = [int(each["id"]) for each in found]
    assert numbers == sorted(set(numbers))
    progress = [each["data"]["progress"] for each in found]
    assert progress == sorted(progress)
    assert progress[-1] == 1.0
    result = client.get(f"{job}/result").json()
    assert result["policies"] == POLICIES
    assert "lower_bounds" not in result

    last = numbers[-1]
    later = client.get(f"{job}/events", headers={"Last-Event-ID": str(last - 1)})
    assert [each["id"] for each in events(later.text)] == [str(last)]
    assert client.get(f"{job}/events", headers={"Last-Event-ID": str(last)}).status_code == 204
    for odd in ("\u00b2", "-1", "x", "9" * 5000, ""):
        again = client.get(f"{job}/events", headers={b"Last-Event-ID": odd.encode("latin-1")})
        assert again.status_code in (200, 431), odd[:10]


def test_there_is_no_stream_of_no_job(client: TestClient) -> None:
    reply = client.get(f"/v1/jobs/{'0' * 32}/events")
    assert reply.status_code == 404
    assert reply.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_service_ends_though_somebody_watches(tmp_path: Path, number: signal.Signals) -> None:
    database = sqlite_url(tmp_path / "copilot.db")
    command = [sys.executable, "-m", "accelera", "serve", "--db", database, "--json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
            job = client.post("/v1/sweeps", json=ENDLESS).headers["location"]
            while client.get(job).json()["state"] == "queued":
                time.sleep(0.05)
            with client.stream("GET", f"{job}/events") as stream:
                lines = stream.iter_lines()
                assert next(lines)
                server.send_signal(number)
                assert list(lines) is not None, "the stream ends, and is not cut off"
        out, errors = server.communicate(timeout=PATIENCE_S)
    finally:
        server.kill()
        server.wait()
    assert (server.returncode, out, errors) == (0, "", "")
    left = Database(database)
    found = JobQueue(left).find(job.rpartition("/")[2])
    left.close()
    assert found is not None
    assert found.state == "interrupted", "nobody has waited for the end of what was watched"
