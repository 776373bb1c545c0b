"""The machine is described over HTTP as on the command line, without its paths."""

from __future__ import annotations

import json
import subprocess

import pytest

from accelera._inventory import facts, without_paths
from accelera.service import create_app, hardware
from tests.service.asking import TestClient


def test_the_machine_is_described_without_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERA_SPILL", "/tmp")
    monkeypatch.setattr(hardware, "KEPT_S", 3600.0)
    with TestClient(create_app()) as client:
        reply = client.get("/v1/hardware")
        assert reply.status_code == 200
        found = reply.json()
        asked: list[object] = []
        monkeypatch.setattr(hardware, "_read_inventory", lambda: asked.append(1))
        assert client.get("/v1/hardware").content == reply.content
        assert not asked, "the answer is kept for a moment"
    told = json.loads(json.dumps(facts()))
    assert found.keys() == told.keys()
    assert (found["cpu"], found["extras"]) == (told["cpu"], told["extras"])
    assert "folder" in json.dumps(told)
    assert "folder" not in reply.text
    assert "/tmp" in json.dumps(told)
    assert "/tmp" not in reply.text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/var/cache/me/x", "(path)"),
        ("not built at /usr/a b, see '/etc/x'", "not built at (path) b, see '(path)'"),
        ("CPU/GPU and 12 kB/s", "CPU/GPU and 12 kB/s"),
    ],
)
def test_paths_are_blanked(text: str, expected: str) -> None:
    assert without_paths({"folder": text, "list": [text, 1, None]}) == {"list": [expected, 1, None]}


def test_a_machine_that_cannot_be_described_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise subprocess.CalledProcessError(1, "x")

    with TestClient(create_app()) as client:
        monkeypatch.setattr(subprocess, "run", fails)
        reply = client.get("/v1/hardware")
    assert reply.status_code == 503
    assert reply.headers["content-type"] == "application/problem+json"
