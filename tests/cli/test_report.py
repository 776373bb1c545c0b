"""``accelera report``: a page from a trace's file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from accelera.simulator import generate_synthetic_trace
from accelera.trace import Occupancy, Trace, write_trace
from tests.cli.conftest import call


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trace:
    monkeypatch.chdir(tmp_path)
    trace = generate_synthetic_trace("MLP", 3, 8, 16, 0.2, mode="training", hidden_size=64)
    write_trace(trace, "t.parquet")
    return trace


def test_page_is_written_beside_and_the_verdict_said(trace: Trace) -> None:
    ran = call("report", "t.parquet", "--budget", "50%")
    assert ran.exit_code == 0, ran.output
    assert "short" in ran.stdout
    assert "t.html: open it in a browser" in ran.stdout
    text = Path("t.html").read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>")
    assert "t.parquet" in text
    assert sorted(one.name for one in Path().iterdir()) == ["t.html", "t.parquet"]


def test_json_holds_the_figures(trace: Trace) -> None:
    ran = call(
        "report", "t.parquet", "-b", "60kB", "-o", "x.html", "--policy", "lru,fifo", "--no-bound", "--json"
    )
    found = json.loads(ran.stdout)
    assert found["file"] == "x.html"
    assert found["file_bytes"] == Path("x.html").stat().st_size
    assert found["verdict"]["budget_bytes"] == 60_000
    assert found["verdict"]["needs_bytes"] == Occupancy(trace).peak_bytes
    assert found["comparison"]["least_bytes"] is None
    assert {one["policy"] for one in found["comparison"]["policies"]} <= {"lru", "fifo"}


def test_budget_is_the_recorded_one_else_the_machines(trace: Trace) -> None:
    found = json.loads(call("report", "t.parquet", "--hierarchy", "laptop", "--json").stdout)
    assert found["verdict"]["budget_bytes"] == 16 * 10**9
    assert call("report", "t.parquet", "--quiet").stdout == ""


def test_an_existing_page_is_replaced_whole_or_not_at_all(trace: Trace) -> None:
    Path("t.html").write_text("before", encoding="utf-8")
    assert call("report", "t.parquet", "-b", "1MB", "--policies", "nobody").exit_code == 2
    assert Path("t.html").read_text(encoding="utf-8") == "before"
    assert call("report", "t.parquet", "-b", "1MB").exit_code == 0
    assert Path("t.html").read_text(encoding="utf-8") != "before"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["t.parquet", "-o", "t.pdf"], 2, "does not end in .html"),
        (["t.parquet", "-o", "none/t.html"], 2, "there is no folder none"),
        (["t.parquet", "-b", "many"], 2, "--budget"),
        (["t.parquet", "--link", "fast"], 2, "--link"),
        (["t.parquet", "--link", "0"], 2, "moves nothing"),
        (["t.parquet", "--hierarchy", "copilot"], 2, "hierarchy"),
        (["t.parquet", "-p", " , "], 2, "nothing is named"),
        (["t.parquet", "-p", "learned"], 2, "learned"),
        (["absent.parquet"], 4, "absent.parquet"),
    ],
)
def test_what_cannot_be_done_is_said(trace: Trace, words: list[str], code: int, said: str) -> None:
    ran = call("report", *words)
    assert ran.exit_code == code, ran.output
    assert said in " ".join(ran.output.split())
    assert not list(Path().glob("*.html"))
