"""Kill -9 while jobs run: what is finished stays, what was interrupted says so, and one call runs it again.

``LONG_TESTS=1`` kills twenty times during two hundred jobs.
"""

from __future__ import annotations

import functools
import json
import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from accelera.service.jobs import LEASE_S
from accelera.simulator import generate_synthetic_trace, lower_bound
from tests.service.conftest import database_url
from tests.service.processes import LONG, Server, gone, serving

KILLS, JOBS, AT_ONCE = (20, 200, 60) if LONG else (3, 24, 24)
PATIENCE_S = 900


class Crowd:
    """Callers who submit jobs, and note what they were promised: a job that is done stays done."""

    def __init__(self) -> None:
        self.promised: dict[str, dict[str, Any]] = {}
        self.results: dict[str, bytes] = {}
        self.states: dict[str, str] = {}
        self.interruptions: Counter[str] = Counter()

    def submit(self, client: httpx.Client, most: int) -> None:
        """Submit until ``most`` jobs are under way, or all that there are to be."""
        while len(self.promised) < JOBS and len(self.promised) - len(self.results) < most:
            number = len(self.promised)
            body: dict[str, Any] = {"source": {"model_type": "MLP", "num_layers": 2, "seed": number}}
            path = "bounds"
            if number % 3 == 0:  # a second or so
                body = {"source": {"num_layers": 24, "seed": number, "mode": "training"}, "capacities": 12}
                path = "sweeps"
            elif number % 3 == 1:
                body["capacities"] = ["50%"]
            else:
                body["capacities"] = ["60%", "80%"]
            reply = client.post(f"/v1/{path}", json=body)
            assert reply.status_code in (200, 202), reply.text  # a quick one may be done by now
            self.promised[reply.headers["location"].rpartition("/")[2]] = body

    def look(self, client: httpx.Client) -> None:
        """See what has become of all jobs, and fetch new results."""
        for id in self.promised:
            if id in self.results:
                continue
            reply = client.get(f"/v1/jobs/{id}")
            assert reply.status_code == 200, f"the job {id} is lost: {reply.text}"
            job = reply.json()
            self.states[id] = job["state"]
            assert job["state"] in ("queued", "running", "done", "interrupted"), job
            if job["state"] == "done":
                self.results[id] = client.get(f"/v1/jobs/{id}/result").content
            if job["state"] == "interrupted":
                assert "run it again" in job["error"]
                self.interruptions[id] += 1
                assert client.post(f"/v1/jobs/{id}/rerun").status_code == 202

    def has_finished(self, count: int) -> bool:
        return len(self.results) >= count

    def has_begun(self) -> bool:
        """Whether something runs, or nothing is left to."""
        return "running" in self.states.values() or self.has_finished(len(self.promised))

    def is_held(self, client: httpx.Client, server: Server) -> bool:
        """Stop all processes that do jobs; return whether one of them is in the midst of one."""
        server.signal_children(signal.SIGSTOP)
        time.sleep(0.3)  # in which the service writes what has just been done
        self.look(client)
        if "running" in self.states.values():
            return True
        server.signal_children(signal.SIGCONT)
        return False

    def check_kept(self, client: httpx.Client) -> None:
        """Every result that has been seen is there, and the same."""
        for id, result in self.results.items():
            assert client.get(f"/v1/jobs/{id}/result").content == result, f"the result of {id} is lost"


def until(client: httpx.Client, crowd: Crowd, is_enough: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        crowd.look(client)
        if is_enough():
            return
        assert time.monotonic() < deadline, Counter(crowd.states.values())
        time.sleep(0.05)


@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
def test_nothing_finished_is_lost_and_what_was_interrupted_runs_again(url: str, tmp_path: Path) -> None:
    crowd, dice = Crowd(), random.Random(7)
    began_s = time.monotonic()
    left: list[psutil.Process] = []
    for number in range(KILLS):
        server = Server(url, "--workers", "2")
        with httpx.Client(base_url=server.url, timeout=600) as client:
            crowd.check_kept(client)
            crowd.submit(client, AT_ONCE)
            enough = min(len(crowd.results) + JOBS // KILLS // 2, JOBS - 1) if number else 0
            until(client, crowd, functools.partial(crowd.has_finished, enough))
            until(client, crowd, crowd.has_begun)
            if number:
                time.sleep(dice.random() * 0.3)
            else:  # at least this one comes in the midst of a job
                until(client, crowd, functools.partial(crowd.is_held, client, server))
        left += server.kill()
    assert gone(left) == [], "processes of a service that was killed end by themselves"
    with serving(url, "--workers", "2") as server, httpx.Client(base_url=server.url, timeout=600) as client:
        crowd.check_kept(client)
        crowd.submit(client, JOBS)
        until(client, crowd, functools.partial(crowd.has_finished, JOBS))
        crowd.check_kept(client)
        total = sum(crowd.interruptions.values())
        seconds = time.monotonic() - began_s
        print(f"{KILLS} kills, {JOBS} jobs: {total} interruptions, all done after {seconds:.0f} s")
        assert total >= 1
        for id, job in ((id, client.get(f"/v1/jobs/{id}").json()) for id in crowd.promised):
            assert job["attempt"] == 1 + crowd.interruptions[id], "none is done twice, none counted wrongly"
    check_results(crowd)
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def check_results(crowd: Crowd) -> None:
    for id, body in crowd.promised.items():
        if body["capacities"] == ["50%"]:
            found = json.loads(crowd.results[id])
            trace = generate_synthetic_trace("MLP", 2, seed=body["source"]["seed"])
            assert found["lower_bound_bytes"] == [lower_bound(trace, found["capacities"][0])]


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return database_url(request, tmp_path)


def test_a_lease_is_short_enough_to_wait_for() -> None:
    assert LEASE_S <= 30
