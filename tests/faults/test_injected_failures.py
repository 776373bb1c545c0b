"""Public operations while the N-th allocation, opening, read, write, flush or start of a thread fails.

A failure gives an error of this library, of memory or of the system's files, or does not matter to the
result. Inputs stay as they were, nothing leaks, and the next attempt, or the resumed one, is right.

Each run of the tests takes a third of the combinations, another one each day; ``make faults`` takes all of
them, and every N.
"""

from __future__ import annotations

import datetime
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.children import ROOT
from tests.faults.operations import CASES
from tests.faults.runner import INJECTOR

FILES = "open,read,write,flush"
ALL = "ACCELERA_TEST_EVERY" in os.environ
DAY = int(os.environ.get("ACCELERA_TEST_SEED", datetime.date.today().toordinal()))


def combinations() -> list[tuple[str, str]]:
    """Return the operations, each with the gates that it goes through."""
    result = []
    for name in CASES:
        result.append((name, "block"))
        if "file" in name or name in ("budgeted_step", "checkpoint", "traces"):
            result += [(name, FILES), (name, f"{FILES}+")]
        if "file" in name or name in ("batch_on_threads", "budgeted_step", "product_in_memory"):
            result.append((name, "thread"))
    return result if ALL else [each for i, each in enumerate(result) if (i + DAY) % 3 == 0]


@pytest.fixture(scope="module")
def injector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("c++") or shutil.which("g++")
    assert compiler, "a C++ compiler is needed"
    library = tmp_path_factory.mktemp("injector") / "inject.so"
    source = Path(__file__).with_name("inject.cpp")
    command = [compiler, "-std=c++17", "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return library


@pytest.mark.parametrize(("name", "gates"), combinations())
def test_failures_lose_nothing(name: str, gates: str, injector: Path) -> None:
    variables = {**os.environ, "LD_PRELOAD": str(injector), INJECTOR: str(injector)}
    ended = subprocess.run(
        [sys.executable, "-m", "tests.faults.runner", name, gates, "1", "100000"],
        cwd=ROOT,
        env={**variables, "ACCELERA_TEST_SEED": str(DAY)},
        capture_output=True,
        text=True,
        timeout=3600 if ALL else 600,
        check=False,
    )
    lines = ended.stdout.splitlines()
    assert ended.returncode == 0, f"{lines[-1:]}: exit {ended.returncode}: {ended.stderr[-3000:]}"
    report = json.loads(lines[-1])
    assert not report["wrong"], f"with ACCELERA_TEST_SEED={DAY}: {report['wrong']}"
    if gates == FILES:
        assert report["tried"] > 0, "no passage through the gates"
