"""HTTP: bodies that the service receives, and replies that its client receives."""

from __future__ import annotations

import functools
from typing import Any
from urllib.parse import quote

import httpx

from accelera.service import ServiceLimits, ServiceSettings, create_app
from accelera.service.client import CopilotClient, JobStatus
from tests.fuzz.harness import RESOURCES, fuzz_target, parts_of, text_of
from tests.service.asking import TestClient

LIMITS = ServiceLimits(accesses=20_000, quick_accesses=2_000, waiting_jobs=0, requests_per_minute=0)
"""No job may wait, so bodies of jobs are checked and the jobs are refused."""
REFUSED = 503
MOST_PATH = 2000


@functools.cache
def _service() -> TestClient:
    RESOURCES.callback(_service.cache_clear)
    return RESOURCES.enter_context(TestClient(create_app(ServiceSettings(limits=LIMITS))))


@fuzz_target(examples=80)
def http_body(data: bytes) -> None:
    """Method and path, then the body; exceptions of the service are raised here."""
    line, body = parts_of(data, 2)
    method, _, path = text_of(line).strip().partition(" ")
    if not method.isascii() or not method.isalpha():
        return
    headers = {"content-type": "application/json"}
    reply = _service().request(method, _sound_path(path), content=body, headers=headers)
    assert reply.status_code < 500 or reply.status_code in (501, REFUSED), reply.text
    if reply.status_code >= 400 and method != "HEAD":
        assert reply.json()["status"] == reply.status_code, reply.text


def _sound_path(path: str) -> str:
    """Return a path as a client sends it: percent signs stay, other characters are quoted."""
    return "/" + quote(path.lstrip("/")[:MOST_PATH], safe="%/?&=+:,;@{}")


@fuzz_target(examples=60)
def http_upload(data: bytes) -> None:
    """A trace of any format under a name."""
    name, content = parts_of(data, 2)
    headers = {"content-type": "application/octet-stream"}
    reply = _service().post(
        "/v1/traces", params={"name": text_of(name)[:MOST_PATH]}, content=content, headers=headers
    )
    assert reply.status_code < 500, reply.text


def _call_all(client: CopilotClient) -> list[Any]:
    """Return calls of every kind of reply: of one job, many jobs, traces, runs, a result, and events."""
    return [
        lambda: client.job("a"),
        client.jobs,
        lambda: client.trace("a"),
        client.traces,
        lambda: client.run("a"),
        client.runs,
        lambda: client.result("a"),
        lambda: client.submit("sweeps", {}),
        lambda: [JobStatus.of(event).has_ended for event in client._transport.events("/v1/jobs/a/events")],
    ]


@fuzz_target(examples=150)
def http_reply(data: bytes) -> None:
    """Status, number of the call and whether it has a location, then the body of a reply."""
    head, body = parts_of(data, 2)
    words = [*text_of(head).split(), "200", "0"]
    status = int(words[0]) if words[0] in ("200", "201", "202", "404", "422", "503") else 200
    reply = httpx.Response(status, content=body, headers={"location": "/v1/jobs/a"} if words[2:] else {})
    client = CopilotClient("http://127.0.0.1:1", transport=httpx.MockTransport(lambda _: reply))
    calls = _call_all(client)
    number = int(words[1]) if words[1].isascii() and words[1].isdigit() and len(words[1]) < 3 else 0
    calls[number % len(calls)]()
