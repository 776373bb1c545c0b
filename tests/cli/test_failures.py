"""One line, one exit code, with ``--json`` one object."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from accelera.cli import ExitCode
from accelera.cli.failures import exit_code
from accelera.errors import BackendMissingError, DeviceError, DeviceMemoryError, StoreChangedError
from tests.cli.conftest import Case

Run = Callable[..., Any]

BAD = {
    "no such verb": (["matmull"], ExitCode.USAGE, "Did you mean"),
    "no such option": (
        ["matmul", "A.npy", "B.npy", "-o", "C.npy", "--bugdet", "1"],
        ExitCode.USAGE,
        "--budget",
    ),
    "no operand": (["matmul", "A.npy", "-o", "C.npy"], ExitCode.USAGE, "'B'"),
    "no result": (["matmul", "A.npy", "B.npy"], ExitCode.USAGE, "--out"),
    "a nameless result": (["matmul", "A.npy", "B.npy", "-o", ""], ExitCode.USAGE, "names no file"),
    "no size": (["plan", "matmul", "A.npy", "B.npy", "--budget", "7 parsecs"], ExitCode.USAGE, "512MiB"),
    "over the whole": (["plan", "matmul", "A.npy", "B.npy", "--budget", "150%"], ExitCode.USAGE, "150%"),
    "no shape": (["plan", "matmul", "A.npy", "B.npy", "--a-shape", "wide"], ExitCode.USAGE, "4096x1024"),
    "another shape": (["plan", "matmul", "A.npy", "B.npy", "--a-shape", "3x3"], ExitCode.USAGE, "(512, 384)"),
    "shapes": (["plan", "matmul", "B.npy", "A.npy"], ExitCode.USAGE, "448"),
    "element types": (["copy", "A.npy", "C.npy", "--dtype", "int8"], ExitCode.USAGE, "int8"),
    "no such device": (["plan", "matmul", "A.npy", "B.npy", "--device", "cpuu"], ExitCode.USAGE, "'cpu'"),
    "no such format": (["matmul", "A.npy", "B.npy", "-o", "C.xls"], ExitCode.USAGE, ".npy"),
    "budget": (["matmul", "A.npy", "B.npy", "-o", "C.npy", "--budget", "1MiB"], ExitCode.BUDGET, "at least"),
    "no file": (["plan", "matmul", "a.npy", "B.npy"], ExitCode.STORE, "a.npy"),
    "no array": (["plan", "matmul", "text.npy", "B.npy"], ExitCode.STORE, "text.npy"),
    "no header": (["plan", "matmul", "raw.bin", "B.npy"], ExitCode.STORE, "raw.bin"),
    "no folder": (["matmul", "A.npy", "B.npy", "-o", "none/C.npy"], ExitCode.STORE, "none"),
    "an operand": (["matmul", "A.npy", "B.npy", "-o", "A.npy"], ExitCode.STORE, "operand"),
    "both ways": (
        ["matmul", "A.npy", "B.npy", "-o", "C.npy", "--resume", "--restart"],
        ExitCode.USAGE,
        "exclude each other",
    ),
}


@pytest.fixture
def files(case: Case) -> Case:
    Path("text.npy").write_text("not an array")
    Path("raw.bin").write_bytes(bytes(64))
    return case


@pytest.mark.parametrize("name", BAD)
def test_one_line_and_a_code(name: str, files: Case, run: Run) -> None:
    words, code, hint = BAD[name]
    before = sorted(files.folder.iterdir())
    ran = run(*words)
    assert ran.exit_code == code, ran.output
    assert ran.stdout == ""
    line, end = ran.stderr.split("\n")
    assert line.startswith("error: ")
    assert hint in line
    assert end == ""
    assert sorted(files.folder.iterdir()) == before


@pytest.mark.parametrize("name", BAD)
def test_json_carries_the_same(name: str, files: Case, run: Run) -> None:
    words, code, hint = BAD[name]
    ran = run(*words, "--json")
    found = json.loads(ran.stdout)["error"]
    assert found["exit_code"] == code == ran.exit_code
    assert hint in found["message"]
    assert found["type"]
    assert ran.stderr == ""


def test_a_setting_that_cannot_be_read(case: Case, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERA_IO_THREADS", "many")
    ran = run("plan", "matmul", "A.npy", "B.npy")
    assert ran.exit_code == ExitCode.USAGE
    assert "ACCELERA_IO_THREADS='many'" in ran.stderr


def test_a_bug_says_that_it_is_one(case: Case, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("three over nothing")

    monkeypatch.setattr("accelera._inventory.facts", broken)
    ran = run("info")
    assert ran.exit_code == ExitCode.UNEXPECTED
    assert "ZeroDivisionError: three over nothing" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_debug_shows_where(case: Case, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[BaseException] = []
    monkeypatch.setattr(traceback, "print_exception", shown.append)
    monkeypatch.setattr("logging.basicConfig", lambda **_: None)
    monkeypatch.setattr(logging.getLogger("accelera"), "setLevel", lambda level: None)
    assert run("--debug", "plan", "matmul", "none.npy", "B.npy").exit_code == ExitCode.STORE
    assert [type(error).__name__ for error in shown] == ["StoreError"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
        (typer.Abort(), ExitCode.INTERRUPTED),
        (DeviceMemoryError("full"), ExitCode.DEVICE),
        (DeviceError("fell off"), ExitCode.DEVICE),
        (MemoryError(), ExitCode.DEVICE),
        (StoreChangedError("changed"), ExitCode.STORE),
        (PermissionError("no"), ExitCode.STORE),
        (BackendMissingError("install it"), ExitCode.USAGE),
        (RuntimeError("?"), ExitCode.UNEXPECTED),
    ],
)
def test_kinds_of_error(error: BaseException, code: ExitCode) -> None:
    assert exit_code(error) is code


def test_every_code_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    assert [code for code in ExitCode if f"| {code.value} |" not in page] == []
