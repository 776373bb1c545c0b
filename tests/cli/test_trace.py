"""``accelera trace stats`` and ``accelera trace convert``, as a user sees them."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accelera.trace import read_trace, write_trace
from accelera.trace._internal import content_hash
from tests.trace.examples import step_by_step

Run = Callable[..., Any]


@pytest.fixture(autouse=True)
def trace_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_trace(step_by_step(), "step.parquet")


def test_stats(run: Run) -> None:
    ran = run("trace", "stats", "step.parquet")
    assert ran.exit_code == 0
    for word in (
        "5: 3 reads of 50 B, 2 writes of 25 B",
        "peak alive      60 B in step 0 (matmul)",
        "LRU with",
    ):
        assert word in ran.stdout


def test_stats_as_json(run: Run) -> None:
    found = json.loads(run("trace", "stats", "step.parquet", "--top", "1", "--json").stdout)
    assert found["floor"] == {"size_bytes": 40, "step": 2, "op": "add"}
    assert len(found["peak"]["top_live"]) == 1
    assert found["lru"]["sampled_fraction"] == 1


def test_stats_from_a_sample(run: Run) -> None:
    found = json.loads(run("trace", "stats", "step.parquet", "--sample", "0.5", "--json").stdout)
    assert found["lru"]["sampled_fraction"] == 0.5
    assert found["reuse"] is None


def test_there_and_back(run: Run) -> None:
    for source, target in (("step.parquet", "step.json"), ("step.json", "back.parquet")):
        ran = run("trace", "convert", source, target)
        assert ran.exit_code == 0
        assert ran.stdout == f"{target}: Trace(CNN, 5 accesses of 4 buffers in 6 steps)\n"
    assert content_hash(read_trace("back.parquet")) == content_hash(step_by_step())


def test_convert_as_json_and_by_name_of_format(run: Run) -> None:
    ran = run("trace", "convert", "step.parquet", "out", "--target-format", "csv", "--json")
    assert json.loads(ran.stdout) == {
        "path": "out",
        "accesses": 5,
        "buffers": 4,
        "steps": 6,
        "model_type": "CNN",
    }
    assert run("trace", "stats", "out", "--format", "csv").exit_code == 0


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "bad.csv",
            b"tensor_id,size_mb\nQ,1\nK,big\n",
            "bad.csv: line 3, column size_mb: 'big' is not a number",
        ),
        ("bad.parquet", b"nothing of the kind", "bad.parquet is not a sound Parquet file"),
        ("bad.pickle", pickle.dumps(print), "it asks for builtins.print"),
        ("bad.oracleGeneral", b"x" * 30, "ends at byte 30, inside record 1"),
        ("bad.json", b"", "bad.json is empty"),
        ("bad.perfetto.json", b"{}", "cannot be read: this format is only written"),
    ],
)
def test_a_malformed_file_is_one_line_and_exit_code_4(run: Run, name: str, content: bytes, said: str) -> None:
    Path(name).write_bytes(content)
    ran = run("trace", "stats", name)
    assert ran.exit_code == 4
    assert said in ran.stderr
    assert ran.stderr.count("\n") == 1
    error = json.loads(run("trace", "convert", name, "out.csv", "--json").stdout)["error"]
    assert said in error["message"]
    assert error["type"] == "TraceFormatError"
    assert not Path("out.csv").exists()


def test_files_that_cannot_be(run: Run) -> None:
    absent = run("trace", "stats", "absent.parquet")
    assert absent.exit_code == 4
    assert "absent.parquet" in absent.stderr
    unknown = run("trace", "convert", "step.parquet", "out.xyz")
    assert unknown.exit_code == 2
    assert "no trace format is called '.xyz'" in unknown.stderr
    assert run("trace", "stats", "step.parquet", "--sample", "2").exit_code == 2


def test_help_names_the_verbs(run: Run) -> None:
    text = run("trace", "--help").stdout
    assert all(verb in text for verb in ("stats", "convert"))
