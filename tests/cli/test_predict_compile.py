"""``accelera predict-compile``: traces replayed, sources read, mistakes in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accelera.estimate import prediction
from accelera.trace import Trace, write_trace

Run = Callable[..., Any]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    kinds = [0, 1, 0, 1, 5, 0, 1]
    trace = Trace.from_arrays(
        [0, 1, 1, 2, 1, 2, 3], 4096, kinds=kinds, steps=[0, 0, 1, 1, 1, 2, 2], ops=["add", "relu", "mm"],
        dtypes=["float32"] * 4, flops=[1e3, 1e3, 1e6],
    )  # fmt: skip
    write_trace(trace, tmp_path / "t.parquet")
    (tmp_path / "s.py").write_text("for i in range(10):\n    x = a * b\n")
    (tmp_path / "bad.py").write_text("x = 1\nfor\n")
    (tmp_path / "s.c").write_text("for (;;) { x += 1; }")
    return tmp_path


def test_a_trace_as_text(run: Run) -> None:
    ran = run("predict-compile", "t.parquet", "--budget", "70%", "--batch", "2")
    assert ran.exit_code == 0, ran.output
    for word in ("add + relu", "peak memory", "fits with offload", "largest batch", "The peak is"):
        assert word in ran.stdout


def test_a_trace_as_json(run: Run) -> None:
    found = json.loads(run("predict-compile", "t.parquet", "-b", "70%", "-b", "1GB", "--json").stdout)
    assert [each["verdict"] for each in found["fits"]] == ["fits with offload", "fits"]
    assert found["fusion"]["launches"] == {"value": 2, "unit": "", "source": "analytic"}
    assert len(found["plans"]) == 2


def test_on_this_machine(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    small = prediction.local_machine(small=True)
    monkeypatch.setattr(prediction, "local_machine", lambda: small)
    ran = run("predict-compile", "t.parquet", "--machine", "local")
    assert ran.exit_code == 0, ran.output
    assert "time on local" in ran.stdout
    assert "expected from" in ran.stdout


def test_a_source_file(run: Run) -> None:
    ran = run("predict-compile", "s.py", "--opt-level", "O3")
    assert ran.exit_code == 0, ran.output
    assert "O3 *" in ran.stdout
    found = json.loads(run("predict-compile", "s.py", "-O", "O1", "--json").stdout)
    assert (found["language"], found["opt_level"], len(found["levels"])) == ("Python", "O1", 4)


def test_other_languages_are_not_parsed(run: Run) -> None:
    assert "not parsed" in run("predict-compile", "s.c").stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("bad.py",), "line 2"),
        (("s.py", "-O", "O7"), "O7"),
        (("t.parquet", "--machine", "abacus"), "abacus"),
        (("t.parquet", "--budget", "lots"), "lots"),
        (("none.py",), "none.py"),
        (("t.parquet", "-O", "O3"), "a trace has no levels"),
        (("s.py", "-b", "1GB"), "does not tell of memory"),
    ],
)
def test_mistakes_are_one_line_and_usage(run: Run, words: tuple[str, ...], said: str) -> None:
    ran = run("predict-compile", *words)
    assert ran.exit_code == 2
    assert said in ran.stderr


def test_the_format_may_be_named(run: Run, folder: Path) -> None:
    (folder / "t.parquet").rename(folder / "t.py")
    ran = run("predict-compile", "t.py", "--format", "parquet", "--json")
    assert json.loads(ran.stdout)["steps"] == 3
