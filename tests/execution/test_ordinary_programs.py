"""Ordinary programs observe the same with the default executor as with a plain loop."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.architecture.repository import run_python
from tests.execution.ordinary_programs import PROGRAMS


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bool]:
    ran = run_python(
        str(Path(__file__).with_name("ordinary_programs.py")), cwd=tmp_path_factory.mktemp("programs")
    )
    assert ran.returncode == 0, ran.stderr
    return dict(json.loads(ran.stdout))


@pytest.mark.parametrize("program", [program.__name__ for program in PROGRAMS])
def test_the_default_equals_a_plain_loop(report: dict[str, bool], program: str) -> None:
    assert report[program]
