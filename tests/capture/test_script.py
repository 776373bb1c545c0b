"""A script is recorded as it runs with python: its arguments, output, errors and exit code are its own."""

from __future__ import annotations

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from accelera.capture import capture_script
from accelera.cli import app
from accelera.trace import read_trace
from tests.capture.reading import check_conserved, told

TRAINING = """
import sys
import torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(torch.randn(5, 4)), torch.zeros(5, dtype=torch.long)).backward()
    optimizer.step()
print(__name__, sys.argv[1:])
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(TRAINING)
    return path


def test_every_iteration_and_every_role_is_there(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    captured = capture_script(script, ["--lr", "3"])
    assert captured.error is None
    assert capsys.readouterr().out == "__main__ ['--lr', '3']\n"
    trace = captured.trace
    check_conserved(trace)
    assert len(trace.meta["iterations"]) == 3
    known = set(zip(trace.names, trace.roles, strict=True))
    assert ("0.weight", "weight") in known
    assert ("2.bias.grad", "gradient") in known
    assert ("0.weight.exp_avg", "optimizer_state") in known
    assert ("1.relu", "activation") in known
    first, second, third = (*trace.meta["iterations"],)
    assert trace.ops[second:third] == trace.ops[third : third + third - second]
    assert first == 0


def test_threads_and_pools_that_were_there_before_are_left_alone(script: Path) -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        try:
            assert capture_script(script).error is None
        finally:
            over.set()
        assert pool.submit(int).result() == 0
    thread.join()


def test_pools_of_the_script_end_with_it(script: Path) -> None:
    script.write_text(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "pool = ThreadPoolExecutor(1)\nfound = []\npool.submit(found.append, 1)\n"
    )
    others = set(threading.enumerate())
    assert capture_script(script).error is None
    assert not set(threading.enumerate()) - others


def test_work_after_the_last_step_is_no_iteration(script: Path) -> None:
    script.write_text(TRAINING + "print(model(torch.randn(5, 4)).sum().item())")
    assert len(capture_script(script).trace.meta["iterations"]) == 3


def test_argv_and_path_are_put_back(script: Path) -> None:
    before = (sys.argv, list(sys.path), sys.modules["__main__"])
    capture_script(script)
    assert (sys.argv, sys.path, sys.modules["__main__"]) == before


def test_modules_beside_the_script_are_found(tmp_path: Path) -> None:
    (tmp_path / "beside_it.py").write_text("import torch\nones = torch.ones(3)\n")
    (tmp_path / "main.py").write_text("import beside_it\nbeside_it.ones + 1\n")
    captured = capture_script(tmp_path / "main.py")
    sys.modules.pop("beside_it", None)
    assert captured.error is None
    assert told(captured.trace)[:2] == ["ones WRITE ones", "add READ ones"]


@pytest.mark.parametrize(
    "end", ["raise KeyError('mine')", "import sys; sys.exit(7)", "raise KeyboardInterrupt"]
)
def test_what_it_raises_is_told_with_the_trace_until_then(script: Path, end: str) -> None:
    script.write_text(TRAINING + end)
    captured = capture_script(script)
    assert type(captured.error).__name__ in end or "SystemExit" in repr(captured.error)
    assert captured.trace.step_count > 50


def test_a_script_without_torch_leaves_an_empty_trace(tmp_path: Path) -> None:
    (tmp_path / "none.py").write_text("print(1)")
    trace = capture_script(tmp_path / "none.py").trace
    assert trace.step_count == len(trace) == trace.meta["peak_live_bytes"] == 0


def run(folder: Path, *words: str) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return CliRunner().invoke(app, ["trace", "capture", *words])


def test_the_command_passes_arguments_on_and_takes_its_own_anywhere(script: Path) -> None:
    ran = run(script.parent, "train.py", "--lr", "3", "-o", "t.parquet", "--json", "--", "-o", "x")
    assert ran.exit_code == 0, ran.stderr
    assert ran.stderr == "__main__ ['--lr', '3', '-o', 'x']\n"
    trace = read_trace(script.parent / "t.parquet")
    assert json.loads(ran.stdout) == {
        "path": "t.parquet",
        "accesses": trace.access_count,
        "buffers": trace.buffer_count,
        "steps": trace.step_count,
        "iterations": 3,
        "peak_live_bytes": trace.meta["peak_live_bytes"],
    }


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit('no')", 1, "no\n"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
    ],
)
def test_the_command_ends_as_the_script_does(script: Path, end: str, code: int, said: str) -> None:
    script.write_text(TRAINING + end)
    ran = run(script.parent, "train.py")
    assert ran.exit_code == code
    assert ran.stderr.endswith(said)
    assert "accelera/capture" not in ran.stderr
    assert read_trace(script.parent / "train.parquet").step_count > 50


def test_a_script_that_is_no_python_is_told_as_python_does(script: Path) -> None:
    script.write_text("def broken(:\n")
    ran = run(script.parent, "train.py")
    assert ran.exit_code == 1
    assert "SyntaxError" in ran.stderr
    assert "runpy" not in ran.stderr
    assert "accelera/capture" not in ran.stderr


@pytest.mark.parametrize("out", ["t.nothing", "nowhere/t.parquet"])
def test_what_cannot_be_written_is_refused_before_the_script_runs(script: Path, out: str) -> None:
    ran = run(script.parent, "train.py", "-o", out)
    assert ran.exit_code == 2
    assert ran.stdout == ""
    assert ran.stderr.startswith("error: ")
