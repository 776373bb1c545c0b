"""Questions that jobs answer, however long a busy machine takes over them."""

from __future__ import annotations

import time
from typing import Any

from starlette import testclient

ENDLESS: dict[str, Any] = {"source": {"mode": "training", "num_layers": 96, "steps": 16}}
"""A sweep that takes minutes: it does not end before a test that has stalled goes on and stops it."""


class TestClient(testclient.TestClient):
    """A caller on this machine, as a service without a token wants it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"base_url": "http://127.0.0.1", **options})


def state_at_end(client: TestClient, job: str) -> str:
    """Return the state in which the job at a path has ended."""
    while (state := client.get(job).json()["state"]) in ("queued", "running"):
        time.sleep(0.05)
    return str(state)


def reply_to(client: TestClient, path: str, body: Any) -> Any:
    """Return the answer or the refusal; ``location`` is the job that was asked, where it was one."""
    query = "&wait=30" if "?" in path else "?wait=30"
    while (reply := client.post(path + query, json=body)).status_code == 202:
        job = reply.headers["location"]
        if state_at_end(client, job) == "done":
            reply = client.get(f"{job}/result")
            reply.headers["location"] = job
            return reply
    return reply


def answered(client: TestClient, path: str, body: Any) -> Any:
    """Return what the answer says, which is no refusal."""
    reply = reply_to(client, path, body)
    assert reply.status_code == 200, reply.text
    return reply.json()
