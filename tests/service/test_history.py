"""Runs are kept, listed, described and deleted, on both databases; what jobs found is kept by itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import inspect

from accelera._plotting import format_size
from accelera.service import ServiceLimits, ServiceSettings, create_app
from accelera.service.database import Database
from accelera.service.history import summary_of
from accelera.service.jobs import FAULT, JobQueue, digest_of
from accelera.views._internal import policy_label
from tests.service.asking import TestClient, reply_to

RUN = {
    "kind": "fit",
    "title": "7B in 12 GB",
    "request": {"source": {"num_layers": 32}, "budget": "12GB"},
    "headline": "2.0 GB short",
    "figures": {"needs_bytes": 14_000_000_000, "slowdown": 1.4, "nested": {"list": [1, None, "ä\x00"]}},
}
SMALL = {"model_type": "MLP", "num_layers": 2}


@pytest.fixture
def client(database: Database) -> Iterator[TestClient]:
    settings = ServiceSettings(database_url=database.url, limits=ServiceLimits(runs=5))
    with TestClient(create_app(settings), raise_server_exceptions=False) as found:
        yield found


def keep(client: TestClient, **changes: Any) -> Any:
    reply = client.post("/v1/runs", json={**RUN, **changes})
    assert reply.status_code == 201, reply.text
    assert reply.headers["location"] == f"/v1/runs/{reply.json()['id']}"
    return reply.json()


def test_a_run_is_kept_described_listed_and_deleted(client: TestClient) -> None:
    kept = keep(client)
    assert {name: kept[name] for name in RUN} == RUN
    assert (kept["trace"], kept["job"]) == (None, None)
    assert abs(kept["created_s"] - time.time()) < 60
    assert client.get(f"/v1/runs/{kept['id']}").json() == kept
    assert client.get("/v1/runs").json() == {"total": 1, "runs": [kept]}
    assert client.delete(f"/v1/runs/{kept['id']}").status_code == 204
    for gone in (client.get, client.delete):
        reply = gone(f"/v1/runs/{kept['id']}")
        assert reply.status_code == 404
        assert reply.headers["content-type"] == "application/problem+json"
    assert client.get("/v1/runs").json() == {"total": 0, "runs": []}


def test_the_newest_come_first_and_the_oldest_go(client: TestClient) -> None:
    ids = [
        keep(client, title=f"run {number}", kind="fit" if number % 2 else "advise")["id"]
        for number in range(8)
    ]
    found = client.get("/v1/runs").json()
    assert [run["id"] for run in found["runs"]] == ids[:2:-1], "five are kept"
    page = client.get("/v1/runs?limit=2&offset=1").json()
    assert ([run["id"] for run in page["runs"]], page["total"]) == ([ids[6], ids[5]], 5)
    odd = client.get("/v1/runs?kind=fit").json()
    assert ([run["title"] for run in odd["runs"]], odd["total"]) == (["run 7", "run 5", "run 3"], 3)


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": ""},
        {"kind": "Fit"},
        {"kind": None},
        {"title": "x" * 201},
        {"title": "a\x00b"},
        {"headline": "x" * 501},
        {"headline": "two\nlines"},
        {"request": []},
        {"request": {"series": list(range(10_000))}},
        {"figures": {"text": "x" * 20_000}},
        {"figures": {"huge": 1 << 80}},
        {"id": "0" * 32},
        {"created_s": 0.0},
    ],
)
def test_what_is_no_run_is_a_problem(client: TestClient, changes: dict[str, Any]) -> None:
    reply = client.post("/v1/runs", json={**RUN, **changes})
    assert reply.status_code == 422, reply.text
    assert reply.headers["content-type"] == "application/problem+json"
    assert client.get("/v1/runs").json()["total"] == 0


@pytest.mark.parametrize("path", ["/v1/runs/x", "/v1/runs?limit=0", "/v1/runs?offset=-1", "/v1/runs?kind=A"])
def test_questions_that_cannot_be_meant(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 422


def test_a_finished_job_is_a_run_and_is_answered_once(client: TestClient) -> None:
    body = {"source": SMALL, "capacity": "80%"}
    first = reply_to(client, "/v1/advise", body)
    assert first.status_code == 200, first.text
    job = first.headers["location"]
    again = client.post("/v1/advise", json=body)
    assert (again.status_code, again.content) == (200, first.content), "at once, though nothing is waited for"
    assert again.headers["location"] == job
    fresh = reply_to(client, "/v1/advise?fresh=true", body)
    assert (fresh.status_code, fresh.content) == (200, first.content)
    assert fresh.headers["location"] != job
    runs = client.get("/v1/runs?kind=advise").json()["runs"]
    assert [f"/v1/jobs/{run['job']}" for run in runs] == [fresh.headers["location"], job]
    capacity = format_size(first.json()["capacity_bytes"])
    assert runs[0]["headline"].startswith(f"at {capacity} use "), "in the units of the pages"
    assert policy_label(first.json()["policy"]) in runs[0]["headline"]
    assert runs[0]["figures"]["policy"] == first.json()["policy"]
    assert client.post("/v1/advise", json=runs[0]["request"]).content == first.content, "its request asks it"


def test_a_run_says_which_trace_it_is_about_while_that_is_stored(client: TestClient) -> None:
    from tests.service.uploads import parquet_of

    stored = client.post("/v1/traces?name=a.parquet", content=parquet_of("MLP", 2))
    assert stored.status_code == 201, stored.text
    digest = stored.json()["digest"]
    kept = keep(client, request={"source": digest})
    assert kept["trace"] == digest
    assert keep(client, request={"source": "0" * 64})["trace"] is None
    assert client.delete(f"/v1/traces/{digest}").status_code == 204
    assert client.get(f"/v1/runs/{kept['id']}").json()["trace"] is None


def test_pictures_are_kept_by_whoever_looks_at_them() -> None:
    assert summary_of("fit", {}, {"verdict": {}}) is None
    summary = summary_of("capture", {"config": {"model_type": "gpt2"}}, {"accesses": 7, "rows": [1]})
    assert summary is not None
    assert (summary.title, summary.figures) == ("capture of gpt2", {"accesses": 7})


def test_the_same_question_has_the_same_digest() -> None:
    assert digest_of("a", {"x": 1, "y": 2}) == digest_of("a", {"y": 2, "x": 1})
    assert len({digest_of("a", {"x": 1}), digest_of("b", {"x": 1}), digest_of("a", {"x": 1.5})}) == 3


def test_old_results_go_and_what_runs_never(database: Database) -> None:
    now = iter(range(1, 10_000))
    database.limits = ServiceLimits(kept_jobs=4, kept_result_bytes=250)
    queue = JobQueue(database, lambda: float(next(now)))
    running = queue.submit("a", {})
    assert queue.claim("w") is not None
    ids = []
    for number in range(6):
        ids.append(queue.submit("a", {"number": number}))
        claim = queue.claim("w")
        assert claim is not None
        queue.finish(claim, "w", result=b"1" * 100)
    waiting = queue.submit("a", {})
    assert queue.prune() == 4
    assert {job.id for job in queue.latest(10)} == {running, waiting, *ids[-2:]}
    assert queue.find_result("a", {"number": 5}) == (ids[-1], b"1" * 100)
    assert queue.find_result("a", {"number": 0}) is None
    database.limits = ServiceLimits(kept_result_bytes=1)
    small = JobQueue(database, lambda: float(next(now)))
    assert small.prune() == 1
    assert small.result(ids[-1]) == b"1" * 100, "the newest stays, whatever its size"


def test_a_database_of_before_gets_the_new_columns(database: Database) -> None:
    from alembic import command
    from alembic.config import Config

    import accelera.service.database as module

    config = Config()
    folder = module.__file__.replace("database.py", "migrations")
    config.set_main_option("script_location", folder)
    with database.engine.begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "0001")
    assert "digest" not in {column["name"] for column in inspect(database.engine).get_columns("jobs")}
    with database.engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    found = {
        table: {c["name"] for c in inspect(database.engine).get_columns(table)} for table in ("jobs", "runs")
    }
    expected = {table.name: set(table.columns.keys()) for table in module.Base.metadata.sorted_tables}
    assert found == {table: expected[table] for table in found}
    assert "jobs_by_digest" in {index["name"] for index in inspect(database.engine).get_indexes("jobs")}


def test_a_fault_is_no_refusal_and_says_so(database: Database) -> None:
    """The test is the worker: the service has none."""
    settings = ServiceSettings(database_url=database.url, workers=0)
    with TestClient(create_app(settings), raise_server_exceptions=False) as client:
        queue = JobQueue(database)
        for error, status in ((f"{FAULT} (ZeroDivisionError)", 500), ("[bounds] no such trace", 422)):

            def work(error: str = error) -> None:
                while (claim := queue.claim("w")) is None:
                    time.sleep(0.02)
                queue.finish(claim, "w", error=error)

            worker = threading.Thread(target=work)
            worker.start()
            reply = client.post("/v1/bounds?wait=30", json={"source": SMALL, "capacities": ["50%"]})
            worker.join()
            assert (reply.status_code, reply.json()["detail"]) == (status, error)
            assert client.get(f"/v1/jobs/{reply.json()['job']}").json()["state"] == "failed"
            again = client.post("/v1/bounds", json={"source": SMALL, "capacities": ["50%"]})
            assert again.status_code == 202, "what failed is no answer"
            assert client.post(f"{again.headers['location']}/cancel").status_code == 202


def test_so_many_jobs_wait(database: Database) -> None:
    settings = ServiceSettings(database_url=database.url, workers=0, limits=ServiceLimits(waiting_jobs=2))
    with TestClient(create_app(settings)) as client:
        replies = [
            client.post("/v1/bounds", json={"source": SMALL, "capacities": [f"{share}%"]})
            for share in (60, 70, 80)
        ]
        assert [reply.status_code for reply in replies] == [202, 202, 503]
        assert replies[-1].json()["limit"] == 2


def test_headlines_are_in_the_words_of_the_pages_and_name_no_knee_below_the_floor() -> None:
    swept = {"best": "wtinylfu", "knee_bytes": 3_000_000_000, "floor_bytes": 2_000_000_000}
    found = summary_of("sweep", {"source": {}}, swept)
    assert found is not None
    assert found.headline == "W-TinyLFU moves least by and large; its knee is at 3.0 GB"
    found = summary_of("sweep", {"source": {}}, {**swept, "knee_bytes": 1})
    assert found is not None
    assert found.headline == "W-TinyLFU moves least by and large; no schedule runs below 2.0 GB"
    found = summary_of("bounds", {"source": {}}, {"lower_bound_bytes": [5_000_000], "capacities": [2**30]})
    assert found is not None
    assert found.headline == "no schedule moves less than 5.0 MB at 1.1 GB"
