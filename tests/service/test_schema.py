"""Schemathesis finds nothing: examples, coverage, fuzzing and stateful runs, on every endpoint.

``LONG_TESTS=1`` takes 100 examples for each operation; ``python -m tests.service.test_schema N`` takes N.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from accelera.service import create_app
from tests.service.asking import TestClient
from tests.service.processes import LONG

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def examined(examples: int, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Let Schemathesis examine a service with small limits."""
    command = [sys.executable, "-m", "tests.service.limited_server", str(folder / "copilot.db")]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        told = [
            f"{url}/openapi.json",
            f"--max-examples={examples}",
            "--seed=7",
            "--no-color",
            "--request-timeout=600",
        ]
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(HERE / "schemathesis.toml")]
        return subprocess.run(
            [*command, "run", *told, "--continue-on-failure", "--no-color", *options],
            capture_output=True,
            text=True,
            cwd=folder,  # where it leaves its caches
            env={**os.environ, "SCHEMATHESIS_HOOKS": "tests.service.schema_hooks", "PYTHONPATH": str(ROOT)},
        )
    finally:
        server.terminate()
        server.wait(300)
        if server.stdout is not None:
            server.stdout.close()


_QUICK = "examples,fuzzing,stateful"
_TWINS = "predict-schedule|validate-trace|generate-trace|fit/least|fit/ways|curves|bounds|advise"
_SLOW = "captures|estimate|plan$|sweeps"
"""Operations whose bodies are those of others, and those that follow a model: the coverage of their fields is
left to the long form; fuzzing and stateful runs have them all."""


@pytest.mark.slow
@pytest.mark.parametrize("phases", [_QUICK, "coverage"])
def test_schemathesis_finds_nothing(tmp_path: Path, phases: str) -> None:
    options = [] if LONG or phases == _QUICK else [f"--exclude-path-regex={_TWINS}|{_SLOW}"]
    ran = examined(100 if LONG else 4, tmp_path, f"--phases={phases}", *options)
    assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr[-2000:]
    found = re.search(r"(\d+) generated", ran.stdout)
    assert found is not None
    assert int(found[1]) > 150, "it has looked"
    for phase in phases.split(","):
        assert f"✅ {phase.title()}" in ran.stdout, ran.stdout[-3000:]


@pytest.fixture(scope="module")
def description() -> Any:
    with TestClient(create_app()) as client:
        return client.get("/openapi.json").json()


def test_every_job_trace_and_run_leads_to_what_can_be_done_with_it(description: Any) -> None:
    paths = description["paths"]
    stored = paths["/v1/traces"]["post"]["responses"]["201"]["links"]
    assert {"describe", "download", "delete", "sweep", "advise", "bound"} <= stored.keys()
    assert paths["/v1/runs"]["post"]["responses"]["201"]["links"].keys() == {"describe", "delete"}
    jobs = {"describe", "result", "watch", "cancel", "rerun", "delete"}
    for path in ("/v1/sweeps", "/v1/jobs/{id}/rerun"):
        assert paths[path]["post"]["responses"]["202"]["links"].keys() == jobs
    names = {each["operationId"] for path in paths.values() for each in path.values()}
    for path in paths.values():
        for operation in path.values():
            for reply in operation["responses"].values():
                assert all(link["operationId"] in names for link in reply.get("links", {}).values())


def test_every_operation_tells_of_its_refusals_as_problems(description: Any) -> None:
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            for status, reply in operation["responses"].items():
                if int(status) >= 400:
                    assert list(reply["content"]) == ["application/problem+json"], (method, path, status)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        done = examined(int(sys.argv[1]), Path(scratch), *sys.argv[2:])
    print(done.stdout, done.stderr)
    sys.exit(done.returncode)
