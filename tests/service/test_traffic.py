"""Traffic is counted and limited; no other site's page may ask; the token is told nowhere."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from accelera.service import ServiceLimits, ServiceSettings, create_app
from accelera.service.database import Database
from accelera.service.settings import REMOTE_RATE
from accelera.service.traffic import caller_key
from tests.service.asking import TestClient, reply_to

TOKEN = "a-token-of-the-tests"
SMALL = {"model_type": "MLP", "num_layers": 1}


def samples(client: TestClient, **options: Any) -> dict[tuple[str, ...], float]:
    """Return all values by name and labels."""
    reply = client.get("/v1/metrics", **options)
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/plain")
    families = text_string_to_metric_families(reply.text)
    return {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}


def test_requests_are_counted_by_route(database: Database) -> None:
    with TestClient(create_app(ServiceSettings(database_url=database.url))) as client:
        for _ in range(3):
            assert client.post("/v1/simulate", json=SMALL).status_code == 200
        client.post("/v1/simulate", json={"num_layers": 0})
        client.get("/v1/runs/" + "0" * 32)
        client.get("/v1/runs/" + "1" * 32)
        client.get("/nothing")
        client.request("BREW", "/nothing")
        question = {"source": SMALL, "capacities": ["50%"]}
        assert reply_to(client, "/v1/bounds", question).status_code == 200
        assert client.post("/v1/bounds", json=question).status_code == 200, "it is known by now"
        found = samples(client)
    assert found["accelera_requests_total", "POST", "/v1/simulate", "200"] == 3
    assert found["accelera_requests_total", "POST", "/v1/simulate", "422"] == 1
    assert found["accelera_requests_total", "GET", "/v1/runs/{id}", "404"] == 2
    assert found["accelera_requests_total", "GET", "none", "404"] == 1
    assert found["accelera_requests_total", "other", "none", "404"] == 1
    assert found["accelera_request_seconds_count", "POST", "/v1/simulate"] == 4
    assert found["accelera_jobs", "done"] == 1
    assert found["accelera_jobs", "running"] == 0
    assert found["accelera_queue_length",] == 0
    assert found["accelera_stored_bytes", "traces"] == 0
    assert found["accelera_stored_bytes", "results"] > 0
    assert found["accelera_cache_hits_total", "replies"] == 2
    assert found["accelera_cache_hits_total", "results"] == 1


def test_applications_count_apart() -> None:
    with TestClient(create_app()) as one, TestClient(create_app()) as other:
        one.get("/metrics")
        assert ("accelera_requests_total", "GET", "/metrics", "200") in samples(one)
        assert ("accelera_requests_total", "GET", "/metrics", "200") not in samples(other)


def test_a_caller_may_ask_so_often_a_minute(one_minute: None) -> None:
    limited = ServiceSettings(limits=ServiceLimits(requests_per_minute=3))
    with TestClient(create_app(limited)) as client, TestClient(client.app, client=("10.0.0.9", 1)) as another:
        assert [client.get("/v1/runs").status_code for _ in range(4)] == [200, 200, 200, 429]
        refused = client.get("/nothing")
        assert refused.status_code == 429
        assert refused.headers["content-type"] == "application/problem+json"
        assert refused.json()["limit"] == 3
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert client.get("/health").status_code == 200
        assert another.get("/v1/models").status_code == 200


def test_only_other_machines_are_limited_by_default() -> None:
    assert ServiceSettings().requests_per_minute == 0
    remote: dict[str, Any] = {"host": "0.0.0.0", "token": TOKEN}
    assert ServiceSettings(**remote).requests_per_minute == REMOTE_RATE
    assert ServiceSettings(**remote, limits=ServiceLimits(requests_per_minute=0)).requests_per_minute == 0


@pytest.mark.parametrize(
    ("client", "expected"),
    [
        (("10.1.2.3", 5), "10.1.2.3"),
        (("2001:db8:1:2:3:4:5:6", 5), "2001:db8:1:2::/64"),
        (None, "unknown"),
        (("testclient", 5), "testclient"),
    ],
)
def test_a_caller_is_an_address(client: Any, expected: str) -> None:
    assert caller_key({"client": client}) == expected


def test_so_many_requests_are_worked_at_together() -> None:
    async def together() -> list[httpx.Response]:
        app = create_app(ServiceSettings(limits=ServiceLimits(concurrent_requests=2), workers=0))
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                body = {"source": SMALL, "capacities": ["50%"]}  # which nobody works at
                waiting = [asyncio.create_task(client.post("/v1/bounds?wait=30", json=body)) for _ in "ab"]
                while len(jobs := app.state.queue.latest(9)) < 2:
                    await asyncio.sleep(0.01)
                found = [await client.get("/v1/runs"), await client.get("/health")]
                for job in jobs:
                    app.state.queue.cancel(job.id)
                await asyncio.gather(*waiting)
                return [*found, await client.get("/v1/runs")]

    refused, healthy, later = asyncio.run(together())
    assert refused.status_code == 503
    assert refused.headers["content-type"] == "application/problem+json"
    assert (refused.json()["limit"], refused.headers["retry-after"]) == (2, "1")
    assert (healthy.status_code, later.status_code) == (200, 200)


def test_no_other_site_may_ask() -> None:
    headers = {"Origin": "https://elsewhere.example", "Access-Control-Request-Method": "POST"}
    with TestClient(create_app()) as client:
        preflight = client.options("/v1/simulate", headers=headers)
        plain = client.get("/v1/health", headers=headers)
        form = client.post("/v1/simulate", content=b"{}", headers={**headers, "Content-Type": "text/plain"})
    assert preflight.status_code == 403
    assert form.status_code == 403
    for reply in (preflight, plain, form):
        assert not [name for name in reply.headers if name.startswith("access-control")]


def test_the_token_is_told_nowhere(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    settings = ServiceSettings(host="0.0.0.0", token=TOKEN, database_url="postgresql://me:secret@localhost/x")
    assert TOKEN not in repr(settings)
    assert "secret" not in repr(settings)
    right, wrong = {"Authorization": f"Bearer {TOKEN}"}, {"Authorization": f"Bearer {TOKEN}x"}
    with TestClient(create_app(ServiceSettings(host="0.0.0.0", token=TOKEN))) as client:
        replies = [
            client.get("/v1/metrics"),
            client.get("/v1/metrics", headers=wrong),
            client.get(f"/v1/runs?token={TOKEN}"),
            client.get("/v1/runs", headers=right),
            client.get("/nothing", headers=right),
            client.post("/v1/simulate", json={"num_layers": 0}, headers=right),
            client.get("/v1/metrics", headers=right),
            client.get("/openapi.json", headers=right),
        ]
    assert [reply.status_code for reply in replies] == [401, 401, 401, 200, 404, 422, 200, 200]
    told = capfd.readouterr()
    said = [
        told.out,
        told.err,
        *(record.getMessage() for record in caplog.records if not record.name.startswith("httpx")),
    ]
    for text in (*said, *(reply.text for reply in replies)):
        assert TOKEN not in text
