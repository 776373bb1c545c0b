"""The command as a process of its own: what it loads, and what a signal leaves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.architecture.repository import run_python
from tests.cli.conftest import Case

Run = Callable[..., Any]

LOADED = (
    "import sys; sys.argv[0] = 'accelera'\nfrom accelera.cli import main\ntry: main()\nfinally: print({0})"
)
HELD = """
import sys, time
from pathlib import Path
from accelera.cli import main
from accelera.engine import matmul as planned
quick, journal = planned.multiply, Path("C.npy.journal")
def slow(*arguments):
    time.sleep(0.02)
    while Path("hold").exists() and journal.read_text().count("\\n") > 2:
        time.sleep(0.01)
    quick(*arguments)
planned.multiply = slow
main()
"""
"""The command, which goes no further when some tiles are stored, as long as there is a file ``hold``."""


def test_help_loads_no_numbers(tmp_path: Path) -> None:
    code = LOADED.format("*sorted({'numpy', 'scipy', 'torch'} & set(sys.modules)), sep='', end='.'")
    ran = run_python("-c", code, "--help", cwd=tmp_path)
    assert ran.stdout.splitlines()[-1] == "."


def test_files_are_multiplied_without_torch(case: Case) -> None:
    code = LOADED.format("'torch' in sys.modules")
    ran = run_python("-c", code, "matmul", "A.npy", "B.npy", "-o", "C.npy", "-q", cwd=case.folder)
    assert ran.stdout.split() == ["False"], ran.stderr
    assert case.is_product()


@pytest.mark.parametrize(
    ("words", "completed"),
    [("accelera mat", "matmul"), ("accelera matmul --bud", "--budget"), ("accelera run --rep", "--report")],
)
def test_the_shell_completes(
    words: str, completed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_ACCELERA_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    code = "import sys; sys.argv = ['accelera']; from accelera.cli import main; main()"
    assert run_python("-c", code, cwd=tmp_path).stdout.split() == [completed]


def test_runs_as_a_module(tmp_path: Path) -> None:
    assert run_python("-m", "accelera", "--version", cwd=tmp_path).stdout.startswith("accelera ")


def test_a_reader_that_leaves_is_no_error(case: Case) -> None:
    piped = f"{sys.executable} -m accelera plan matmul A.npy B.npy | true"
    ran = subprocess.run(["bash", "-c", piped], capture_output=True, text=True, check=False)
    assert "Traceback" not in ran.stderr


@pytest.fixture
def stopped(case: Case, request: pytest.FixtureRequest) -> Case:
    """A run that was stopped by a signal when some tiles were stored, but not all."""
    words = ["matmul", "A.npy", "B.npy", "-o", "C.npy", "--budget", case.tight_budget()]
    Path("hold").touch()
    process = subprocess.Popen([sys.executable, "-c", HELD, *words], stderr=subprocess.PIPE, text=True)
    journal = Path("C.npy.journal")
    began = time.monotonic()
    while not (journal.exists() and journal.read_text().count("\n") > 2):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() - began < 840
        time.sleep(0.01)
    process.send_signal(request.param)
    Path("hold").unlink()
    _, said = process.communicate(timeout=840)
    case.ended = process.returncode, said
    assert not Path("C.npy").exists()
    return case


SIGNALS = pytest.mark.parametrize("stopped", [signal.SIGINT, signal.SIGKILL], indirect=True)


@SIGNALS
def test_resume_goes_on_and_gives_the_same_bits(stopped: Case, run: Run) -> None:
    budget = stopped.tight_budget()
    found = json.loads(
        run("matmul", "A.npy", "B.npy", "-o", "C.npy", "-b", budget, "--resume", "--json").stdout
    )
    assert found["steps_skipped"] > 0
    assert found["steps_run"] + found["steps_skipped"] == found["plan"]["steps"]
    assert found["bytes_written"] < found["result"]["bytes"]
    assert run("matmul", "A.npy", "B.npy", "-o", "whole.npy", "-b", budget).exit_code == 0
    assert np.array_equal(np.load("C.npy"), np.load("whole.npy"))
    assert stopped.is_product()
    assert not list(stopped.folder.glob("C.npy.*"))


@pytest.mark.parametrize("stopped", [signal.SIGINT], indirect=True)
def test_ctrl_c_says_how_to_go_on(stopped: Case) -> None:
    code, said = stopped.ended
    assert code == 130
    assert "--resume goes on from there" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("stopped", [signal.SIGKILL], indirect=True)
def test_what_is_left_is_not_thrown_away_unasked(
    stopped: Case, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["matmul", "A.npy", "B.npy", "-o", "C.npy"]
    left = {path.name: path.read_bytes() for path in stopped.folder.glob("C.npy.*")}
    refused = run(*words)
    assert refused.exit_code == 2
    assert "--resume" in refused.stderr
    assert "--restart" in refused.stderr
    monkeypatch.setattr("accelera.cli.file_operation.someone_is_there", lambda: True)
    for answers in ("quit\n", "restart\nno\n", ""):
        assert run(*words, answers=answers).exit_code == 130
    assert left == {path.name: path.read_bytes() for path in stopped.folder.glob("C.npy.*")}
    assert "were done by the interrupted run" in run(*words, answers="\n").stdout
    assert stopped.is_product()


@pytest.mark.parametrize("stopped", [signal.SIGKILL], indirect=True)
@pytest.mark.parametrize("asked", [False, True])
def test_restart_begins_again(stopped: Case, run: Run, monkeypatch: pytest.MonkeyPatch, asked: bool) -> None:
    monkeypatch.setattr("accelera.cli.file_operation.someone_is_there", lambda: asked)
    words = ["matmul", "A.npy", "B.npy", "-o", "C.npy"]
    ran = run(*words, answers="restart\nyes\n") if asked else run(*words, "--restart")
    assert ran.exit_code == 0, ran.output
    assert "interrupted run" not in ran.stdout
    assert stopped.is_product()


@pytest.mark.parametrize("stopped", [signal.SIGKILL], indirect=True)
def test_an_operand_that_changed_is_refused(stopped: Case, run: Run) -> None:
    np.save("A.npy", 2 * stopped.a)
    ran = run("matmul", "A.npy", "B.npy", "-o", "C.npy", "--resume")
    assert ran.exit_code == 4
    assert "changed" in ran.stderr
    assert "--restart begins again" in ran.stderr
    assert Path("C.npy.partial").exists()


def test_a_run_that_is_alive_is_left_alone(case: Case, run: Run) -> None:
    words = ["matmul", "A.npy", "B.npy", "-o", "C.npy", "--budget", case.tight_budget()]
    Path("hold").touch()
    process = subprocess.Popen([sys.executable, "-c", HELD, *words, "-q"], stderr=subprocess.PIPE)
    while not Path("C.npy.journal").exists():
        assert process.poll() is None
        time.sleep(0.01)
    for choice in ("--resume", "--restart"):
        refused = run(*words, choice)
        assert refused.exit_code == 4
        assert "wait" in refused.stderr
        assert "note" not in refused.stderr
    Path("hold").unlink()
    process.communicate(timeout=840)
    assert process.returncode == 0
    assert case.is_product()


def test_resume_without_anything_to_resume_starts(case: Case, run: Run) -> None:
    ran = run("matmul", "A.npy", "B.npy", "-o", "C.npy", "--resume")
    assert ran.exit_code == 0
    assert "nothing to resume" in ran.stderr
    assert case.is_product()


def test_a_damaged_journal_is_not_overwritten_unasked(case: Case, run: Run) -> None:
    Path("C.npy.journal").write_text("scribble")
    words = ["matmul", "A.npy", "B.npy", "-o", "C.npy"]
    assert run(*words).exit_code == 2
    assert run(*words, "--resume").exit_code == 4
    assert run(*words, "--restart").exit_code == 0
    assert case.is_product()


@pytest.mark.parametrize("words", [(), ("--resume",)])
def test_a_published_result_is_no_unfinished_run(words: tuple[str, ...], case: Case, run: Run) -> None:
    """Killed between the rename and the end of the journal: the run is done."""
    command = ["matmul", "A.npy", "B.npy", "-o", "C.npy", "--budget", case.tight_budget(), "--json"]
    patch = (
        "import os, signal, sys\nfrom accelera.engine.journal import Journal\n"
        "Journal.remove = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "sys.argv = sys.argv[1:]\nfrom accelera.cli import main\nmain()"
    )
    killed = subprocess.run([sys.executable, "-c", patch, "accelera", *command], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert Path("C.npy.journal").exists()
    ran = run(*command, *words)
    assert ran.exit_code == 0, ran.stderr
    assert (json.loads(ran.stdout)["steps_run"] == 0) == ("--resume" in words)
    assert case.is_product()
    assert not list(case.folder.glob("C.npy.*"))


def test_a_journal_whose_header_was_being_written_is_no_hindrance(case: Case, run: Run) -> None:
    for words in ((), ("--resume",)):
        Path("C.npy.journal").write_text('{"journal": 2, "run": "6f')
        assert run("matmul", "A.npy", "B.npy", "-o", "C.npy", *words).exit_code == 0
        assert case.is_product()
        assert not list(case.folder.glob("C.npy.*"))


def test_a_saved_plan_is_followed(case: Case, run: Run) -> None:
    said = run(
        "plan",
        "matmul",
        "A.npy",
        "B.npy",
        "-o",
        "C.npy",
        "--budget",
        case.tight_budget(),
        "--save",
        "plan.json",
    )
    assert said.exit_code == 0
    words = ["matmul", "A.npy", "B.npy", "-o", "C.npy", "--plan", "plan.json", "--json"]
    found = json.loads(run(*words).stdout)
    assert found["plan"]["tile"] in said.stdout
    first = Path("C.npy").read_bytes()
    assert run(*words, "--budget", "256MiB").exit_code == 0
    assert Path("C.npy").read_bytes() == first
    refused = run(*words, "--budget", "1MiB")
    assert refused.exit_code == 3
    assert run("matmul", "B.npy", "A.npy", "-o", "D.npy", "--plan", "plan.json").exit_code == 2
    assert run(*words[:-2], "missing.json").exit_code == 4
