"""Jobs are done in processes, one after the other, whatever becomes of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from accelera.service import ServiceLimits
from accelera.service.database import Database, StoredJob, sqlite_url
from accelera.service.jobs import JobQueue
from accelera.service.workers import Workers
from accelera.simulator import generate_synthetic_trace, lower_bound
from tests.service.asking import ENDLESS

SMALL = {"model_type": "MLP", "num_layers": 2}


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[JobQueue]:
    database = Database(sqlite_url(tmp_path / "copilot.db"))
    yield JobQueue(database)
    database.close()


@pytest.fixture
def workers(queue: JobQueue) -> Iterator[Callable[..., Workers]]:
    started: list[Workers] = []

    def start(**limits: Any) -> Workers:
        queue._database.limits = ServiceLimits(**limits)
        one = Workers(queue._database, 1)
        one.start()
        started.append(one)
        return one

    yield start
    for each in started:
        each.stop()


def awaited(queue: JobQueue, id: str, *states: str) -> StoredJob:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        job = queue.find(id)
        assert job is not None
        if job.state in states:
            return job
        time.sleep(0.05)
    raise AssertionError(f"{id} is {job.state} ({job.error})")


def test_a_bound_is_what_the_library_says(queue: JobQueue, workers: Callable[..., Workers]) -> None:
    workers()
    id = queue.submit("bounds", {"source": SMALL, "capacities": ["50%"]})
    job = awaited(queue, id, "done", "failed")
    assert job.error is None
    found = json.loads(queue.result(id) or b"")
    trace = generate_synthetic_trace("MLP", 2)
    assert found["lower_bound_bytes"] == [lower_bound(trace, found["capacities"][0])]
    assert job.progress == 1


def test_a_job_that_fails_says_why_and_others_go_on(queue: JobQueue, workers: Callable[..., Workers]) -> None:
    workers()
    wrong = queue.submit("bounds", {"source": "0" * 64, "capacities": ["1GiB"]})
    right = queue.submit("advise", {"source": SMALL, "capacity": "80%"})
    failed = awaited(queue, wrong, "done", "failed")
    assert failed.state == "failed"
    assert "there is no trace" in (failed.error or "")
    assert awaited(queue, right, "done", "failed").state == "done"
    assert "policy" in json.loads(queue.result(right) or b"")


def test_a_job_that_takes_too_long_is_ended(queue: JobQueue, workers: Callable[..., Workers]) -> None:
    workers(job_s=1.0)
    id = queue.submit("sweep", ENDLESS)
    job = awaited(queue, id, "done", "failed")
    assert "more than 1 s" in (job.error or "")


def test_a_running_job_is_cancelled(queue: JobQueue, workers: Callable[..., Workers]) -> None:
    workers()
    id = queue.submit("sweep", ENDLESS)
    awaited(queue, id, "running")
    assert queue.cancel(id)
    assert awaited(queue, id, "cancelled", "done").state == "cancelled"


def test_what_runs_when_the_service_stops_is_interrupted(
    queue: JobQueue, workers: Callable[..., Workers]
) -> None:
    one = workers()
    id = queue.submit("sweep", ENDLESS)
    awaited(queue, id, "running")
    one.stop()
    job = queue.find(id)
    assert job is not None
    assert job.state == "interrupted"
    assert "run it again" in (job.error or "")


def test_what_a_page_waits_for_does_not_wait_for_a_sweep(
    queue: JobQueue, workers: Callable[..., Workers]
) -> None:
    workers()
    sweep = queue.submit("sweep", ENDLESS)
    awaited(queue, sweep, "running")
    batch = queue.submit("bounds", {"source": SMALL, "capacities": ["80%"]})
    fit = queue.submit("fit", {"source": SMALL, "budget": "1GB"})
    assert awaited(queue, fit, "done", "failed").state == "done"
    assert [getattr(queue.find(each), "state", "") for each in (sweep, batch)] == ["running", "queued"]
