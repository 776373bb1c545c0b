"""The array API standard's public suite, which lies beside the repository, passes on `accelera.tensora`.

The suite is copied, because it finds its skips file only inside its own folder. Few examples each: a run with
``--max-examples 20`` takes twice as long and passes the same tests.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUITE = ROOT.parent / "shared/vendor/array-api-tests"
SKIPS = Path(__file__).with_name("array_api_skips.txt")
VERSION = "2024.12"
PASSING = 1346
"""Tests of the suite that passed when this was written; 18 are listed, the other 16 it skips by itself."""


def environment() -> dict[str, str]:
    """What the suite is told, without what this run of pytest left for its own processes."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    told = {
        "ARRAY_API_TESTS_MODULE": "accelera.tensora",
        "ARRAY_API_TESTS_VERSION": VERSION,
        "ARRAY_API_TESTS_XFAIL_MARK": "skip",
    }
    return inherited | told


@pytest.mark.skipif(
    not SUITE.is_dir(), reason=f"the array API's suite is not in {SUITE.relative_to(ROOT.parent)}"
)
def test_suite_passes(tmp_path: Path) -> None:
    folder, report = tmp_path / "suite", tmp_path / "report.json"
    shutil.copytree(SUITE, folder, ignore=shutil.ignore_patterns(".git", "__pycache__"))
    shutil.copy(SKIPS, folder / "skips.txt")
    command = [sys.executable, "-m", "pytest", "array_api_tests", "-q", "--tb=short"]
    options = ["--max-examples", "3", "--derandomize", "--disable-deadline", "--skips-file", "skips.txt"]
    noted = ["--json-report", f"--json-report-file={report}", "--json-report-omit=collectors"]
    ran = subprocess.run(
        [*command, "-p", "no:cacheprovider", *options, *noted],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=840,
    )
    assert report.exists(), ran.stdout[-2000:] + ran.stderr[-2000:]
    summary = json.loads(report.read_text())["summary"]
    assert summary.get("failed", 0) + summary.get("error", 0) == 0, ran.stdout[-4000:]
    assert summary["passed"] >= PASSING, summary
