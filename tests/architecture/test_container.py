"""The container's files: none can be built in the tests, so a linter and the command itself read them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.architecture.repository import ROOT

DOCKERFILE = ROOT / "Dockerfile"


def _compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
    return found


def _instruction(name: str) -> list[str]:
    """Return the words of an instruction in the exec form; the last one counts."""
    joined = DOCKERFILE.read_text(encoding="utf-8").replace("\\\n", " ")
    found = re.findall(rf"^{name} (\[.*\])$", joined, re.MULTILINE)
    words: list[str] = json.loads(found[-1])
    return words


def test_linter_finds_nothing() -> None:
    linter = Path(sys.executable).parent / "hadolint"
    ran = subprocess.run([linter, "Dockerfile"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_runs_without_root() -> None:
    users = re.findall(r"^USER (\S+)$", DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE)
    assert users
    assert users[-1] not in ("0", "root")


@pytest.mark.parametrize("form", ["image", "compose"])
def test_command_is_one_that_the_cli_takes(form: str) -> None:
    from typer.main import get_command

    from accelera.cli import app

    begin = _instruction("ENTRYPOINT")
    end = _instruction("CMD") if form == "image" else _compose()["services"]["copilot"]["command"]
    program, verb, *options = [*begin, *end]
    assert (program, verb) == ("accelera", "serve")
    command = get_command(app).commands["serve"]  # type: ignore[attr-defined]
    context = command.make_context("serve", [*options], resilient_parsing=True)
    assert context.params["host"] == "0.0.0.0"
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    assert {word for word in options if word.startswith("--")} <= known


def test_secrets_are_files_that_git_does_not_take() -> None:
    compose = _compose()
    assert set(compose["services"]["copilot"]["secrets"]) <= set(compose["secrets"])
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    sent = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for each in compose["secrets"].values():
        folder = each["file"].partition("/")[0]
        assert f"/{folder}/" in ignored
        assert folder in sent


def test_ports_are_open_to_this_machine_alone() -> None:
    for each in _compose()["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in each.get("ports", []))
