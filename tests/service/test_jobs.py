"""Jobs survive their workers: what is done stays, what is lost is named, nothing is done twice at once."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from accelera.errors import ArgumentError
from accelera.service.database import Database
from accelera.service.jobs import LEASE_S, Claim, JobQueue
from tests.threads import run_in_threads


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        self.now_s += 0.001
        return self.now_s


def claimed(queue: JobQueue, worker: str = "w") -> Claim:
    claim = queue.claim(worker)
    assert claim is not None
    return claim


def state(queue: JobQueue, id: str) -> str:
    job = queue.find(id)
    assert job is not None
    return job.state


def test_jobs_are_done_in_the_order_they_came(database: Database) -> None:
    queue = JobQueue(database, Clock())
    ids = [queue.submit("sweep", {"number": number}) for number in range(5)]
    assert queue.queued_count() == 5
    claims = [claimed(queue) for _ in ids]
    assert [claim.id for claim in claims] == ids
    assert [claim.request["number"] for claim in claims] == list(range(5))
    assert queue.claim("w") is None
    for claim in claims:
        assert queue.finish(claim, "w", result=b'{"n": 1}')
    assert [job.state for job in queue.latest(10)] == ["done"] * 5
    assert queue.result(ids[0]) == b'{"n": 1}'


def test_progress_is_told_and_every_change_has_a_number(database: Database) -> None:
    queue = JobQueue(database, Clock())
    id = queue.submit("sweep", {})
    claim = claimed(queue)
    seen = []
    for progress in (0.25, 0.5, 2.0):
        queue.report_progress(claim, "w", progress, f"at {progress}")
        job = queue.find(id)
        assert job is not None
        seen.append((job.progress, job.doing, job.sequence))
    assert [each[:2] for each in seen] == [(0.25, "at 0.25"), (0.5, "at 0.5"), (1.0, "at 2.0")]
    assert [each[2] for each in seen] == sorted({each[2] for each in seen})


def test_a_worker_that_is_gone_leaves_an_interrupted_job(database: Database) -> None:
    clock = Clock()
    queue = JobQueue(database, clock)
    lost, kept = queue.submit("a", {}), queue.submit("b", {})
    first, second = claimed(queue), claimed(queue, "v")
    clock.now_s += LEASE_S * 0.8
    assert queue.renew(second, "v")
    clock.now_s += LEASE_S * 0.5
    assert queue.end_lapsed() == [lost]
    assert (state(queue, lost), state(queue, kept)) == ("interrupted", "running")
    assert not queue.finish(first, "w", result=b"late"), "it is no longer that worker's"
    assert not queue.renew(first, "w")
    assert queue.rerun(lost)
    again = claimed(queue, "v")
    assert (again.id, again.attempt) == (lost, 2)
    assert not queue.finish(first, "w", result=b"late"), "nor is the second attempt"
    assert queue.finish(again, "v", result=b"{}")
    assert queue.result(lost) == b"{}"


def test_what_waits_is_cancelled_at_once_and_what_runs_by_its_worker(database: Database) -> None:
    queue = JobQueue(database, Clock())
    running, waiting = queue.submit("a", {}), queue.submit("b", {})
    claim = claimed(queue)
    assert queue.cancel(waiting)
    assert state(queue, waiting) == "cancelled"
    assert queue.cancel(running)
    assert state(queue, running) == "running"
    assert not queue.renew(claim, "w"), "the worker hears of it with its next renewal"
    assert queue.finish_cancelled(claim, "w")
    assert state(queue, running) == "cancelled"
    assert not queue.cancel(running)


def test_only_what_has_ended_without_a_result_runs_again(database: Database) -> None:
    queue = JobQueue(database, Clock())
    id = queue.submit("a", {})
    assert not queue.rerun(id)
    assert not queue.delete(id)
    claim = claimed(queue)
    assert not queue.rerun(id)
    assert queue.finish(claim, "w", error="it failed")
    job = queue.find(id)
    assert job is not None
    assert (job.state, job.error) == ("failed", "it failed")
    assert queue.rerun(id)
    assert queue.finish(claimed(queue), "w", result=b"{}")
    assert not queue.rerun(id), "its result stays"
    assert queue.delete(id)
    assert queue.find(id) is None
    assert not queue.rerun("no such job")


def test_a_job_is_claimed_once(database: Database) -> None:
    """Ten threads, each with connections of its own, as many replicas would."""
    queue = JobQueue(database)
    ids = {queue.submit("a", {"n": number}) for number in range(60)}
    found: list[str] = []
    errors: list[BaseException] = []

    def work(name: str) -> None:
        try:
            while (claim := queue.claim(name)) is not None:
                found.append(claim.id)
                queue.finish(claim, name, result=b"{}")
        except BaseException as error:
            errors.append(error)

    run_in_threads(*(partial(work, f"w{number}") for number in range(10)))
    assert not errors
    # With locked rows passed by, a thread may find none while others still hold some.
    while (claim := queue.claim("last")) is not None:
        found.append(claim.id)
        queue.finish(claim, "last", result=b"{}")
    assert len(found) == len(ids)
    assert set(found) == ids


def test_a_database_is_opened_again_with_what_it_held(database: Database) -> None:
    id = JobQueue(database).submit("a", {"text": "ä", "nested": {"list": [1, 2.5, None]}})
    other = Database(database.url)
    job = JobQueue(other).find(id)
    other.close()
    assert job is not None
    assert job.request == {"text": "ä", "nested": {"list": [1, 2.5, None]}}


@pytest.mark.parametrize("url", ["mysql://a@b/c", "nonsense", "", "://"])
def test_an_url_of_another_kind_is_refused(url: Any) -> None:
    with pytest.raises(ArgumentError, match="sqlite"):
        Database(url)


def test_what_a_page_waits_for_goes_before_what_came_earlier(database: Database) -> None:
    queue = JobQueue(database, Clock())
    kinds = ("sweep", "fit", "bounds", "timeline")
    ids = {kind: queue.submit(kind, {}) for kind in kinds}

    def before() -> list[int]:
        found = (queue.find(ids[kind]) for kind in kinds)
        return [queue.count_ahead(job) for job in found if job is not None]

    assert before() == [2, 0, 3, 1]
    first = queue.claim("w", interactive=True)
    assert first is not None
    assert first.kind == "fit"
    assert before()[2:] == [3, 1], "what runs is before them too"
    assert claimed(queue).kind == "timeline"
    assert queue.claim("w", interactive=True) is None
    assert [claimed(queue).kind for _ in range(2)] == ["sweep", "bounds"]
