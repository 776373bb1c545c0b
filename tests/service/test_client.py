"""The typed client speaks to a service over HTTP, and says in words what went wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from accelera.errors import ArgumentError, JobError, ServiceError, ServiceUnreachableError
from accelera.service import CopilotClient
from accelera.service.client import JobStatus
from accelera.simulator import generate_synthetic_trace, simulate
from accelera.trace import write_trace
from tests.ports import reserved_port
from tests.service.asking import ENDLESS
from tests.ui.running import running_service

SEED: dict[str, Any] = {"model_type": "Transformer", "num_layers": 2, "batch_size": 4, "seq_length": 32}
TOKEN = "a-token-of-the-tests"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with running_service(TOKEN) as url:
        yield url


@pytest.fixture
def copilot(address: str) -> Iterator[CopilotClient]:
    with CopilotClient(address, TOKEN) as client:
        yield client


def test_needs_none_of_the_services_packages() -> None:
    code = (
        "import sys; from accelera.service.client import CopilotClient;"
        "sys.exit(', '.join({'fastapi', 'sqlalchemy', 'numpy', 'torch'} & set(sys.modules)) or None)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_answers_are_those_of_the_library(copilot: CopilotClient) -> None:
    trace = generate_synthetic_trace(**SEED)
    found = copilot.simulate({**SEED, "validate": True}, "belady", trace="columns")
    assert found["cache_hits (count)"] == simulate(trace, "copilot", "belady").hits
    assert len(found["trace"]["tensor_id"]) == trace.access_count
    assert found["validation"] == copilot.validate_trace(SEED)
    assert copilot.generate_trace(SEED, trace="none")["accesses"] == trace.access_count
    assert len(copilot.predict_schedule(SEED)["trace"]) == trace.access_count
    assert copilot.predict_compile(SEED)
    assert copilot.health()["status"] == "ok"


def test_traces_are_stored_once_and_come_back(copilot: CopilotClient, tmp_path: Any) -> None:
    trace = generate_synthetic_trace(**SEED)
    path = tmp_path / "small.parquet"
    write_trace(trace, path)
    stored = copilot.upload_trace(path)
    assert stored.accesses == trace.access_count
    assert copilot.upload_trace(path.read_bytes(), "another.parquet").digest == stored.digest
    assert [each.digest for each in copilot.traces()] == [stored.digest]
    assert copilot.download_trace(stored.digest)[:4] == b"PAR1"
    found = copilot.sweep(stored.digest, policies=["lru"], capacities=3)
    assert found
    copilot.delete_trace(stored.digest)
    with pytest.raises(ServiceError, match="there is no trace") as refused:
        copilot.trace(stored.digest)
    assert refused.value.status == 404


def test_jobs_tell_their_progress(copilot: CopilotClient) -> None:
    heard: list[JobStatus] = []
    found = copilot.advise(SEED, "80%", bound=False, on_progress=heard.append)
    assert found
    assert heard[-1].state == "done"
    assert [each.sequence for each in heard] == sorted({each.sequence for each in heard})
    assert copilot.result(heard[-1].id) == found
    assert heard[-1].id in [each.id for each in copilot.jobs()]
    copilot.delete_job(heard[-1].id)


def test_a_job_that_fails_says_so_and_runs_again(copilot: CopilotClient) -> None:
    with pytest.raises(ServiceError, match="there is no trace") as absent:
        copilot.submit("bounds", {"source": "0" * 64, "capacities": ["1MB"]})
    assert absent.value.status == 404
    job = copilot.submit("sweeps", ENDLESS)
    copilot.cancel(job.id)
    with pytest.raises(JobError) as ended:
        copilot.wait(job.id)
    assert ended.value.state == "cancelled"
    assert not copilot.rerun(job.id).has_ended
    copilot.cancel(job.id)
    with pytest.raises(JobError):
        copilot.wait(job.id)


def test_a_job_tells_what_was_asked_where_that_is_short(copilot: CopilotClient) -> None:
    body = {"source": dict(SEED), "capacities": ["80%"], "bound": False}
    short = copilot.submit("sweeps", body)
    asked = copilot.job(short.id).request
    assert asked is not None
    assert asked["capacities"] == ["80%"]
    assert next(job for job in copilot.jobs() if job.id == short.id).request == asked
    config = {"model_type": "gpt2", "architectures": ["x" * 50] * 400}
    long = copilot.submit("estimate", {"config": config, "dtypes": ["float32"]})
    assert copilot.job(long.id).request is None


def test_what_was_asked_before_is_the_job_that_answered(copilot: CopilotClient) -> None:
    body = {"source": {"model_type": "MLP", "num_layers": 1}, "capacities": ["60%"]}
    job = copilot.submit("bounds", body)
    found = copilot.wait(job.id)
    again = copilot.submit("bounds", body)
    assert (again.id, again.state) == (job.id, "done")
    assert copilot.wait(again.id) == found


def test_refusals_are_sentences(address: str, copilot: CopilotClient) -> None:
    with pytest.raises(ServiceError, match=r"refused \(422\).*num_layers") as refused:
        copilot.simulate({"num_layers": 0})
    assert refused.value.problem["errors"][0]["field"].endswith("num_layers")
    with (
        CopilotClient(address, "another-token-123") as stranger,
        pytest.raises(ServiceError, match="send the service's token") as unknown,
    ):
        stranger.jobs()
    assert unknown.value.status == 401
    with reserved_port() as port, pytest.raises(ServiceUnreachableError, match="accelera serve"):
        CopilotClient(f"http://127.0.0.1:{port}").health()
    with pytest.raises(ArgumentError, match="no address"):
        CopilotClient("127.0.0.1:80")
    with pytest.raises(ArgumentError, match="bytes have no name"):
        copilot.upload_trace(b"1")


def test_the_address_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACCELERA_COPILOT_URL", raising=False)
    with pytest.raises(ArgumentError, match="ACCELERA_COPILOT_URL"):
        CopilotClient()
    monkeypatch.setenv("ACCELERA_COPILOT_URL", "http://127.0.0.1:1/")
    assert CopilotClient().url == "http://127.0.0.1:1"


def test_a_lost_event_stream_is_taken_up_where_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accelera.service.client._RECONNECT_S", 0.0)
    asked: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers.get("last-event-id"))
        if len(asked) == 2:
            raise httpx.ReadError("gone")
        state, sequence = ("running", 4) if len(asked) == 1 else ("done", 7)
        job = {"id": "1", "kind": "sweep", "state": state, "sequence": sequence, "unknown": 1}
        return httpx.Response(
            200, text=f": ping\n\nid: {sequence}\nevent: {state}\ndata: {json.dumps(job)}\n\n"
        )

    client = CopilotClient("http://service", transport=httpx.MockTransport(answer))
    assert [each.state for each in client.watch("1")] == ["running", "done"]
    assert asked == [None, "4", "4"]


def test_a_page_that_is_no_problem_is_told_too() -> None:
    page = httpx.MockTransport(lambda _: httpx.Response(502, text="<html>"))
    with pytest.raises(ServiceError, match=r"refused \(502\)"):
        CopilotClient("http://service", transport=page).health()
