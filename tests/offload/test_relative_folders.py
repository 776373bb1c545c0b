"""Relative folders: those of the directory in which they were named, whatever the program changes to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import accelera
from accelera.offload.backing import ScratchBacking


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return another folder than the present one, which has a folder ``scratch``."""
    (tmp_path / "start" / "scratch").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "start")
    return tmp_path / "other"


def test_spill_folder_of_intercepted(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.arange(5000.0)
    with accelera.intercepted(10_000, 0, 0, spill_dir="scratch"):
        monkeypatch.chdir(folders)
        assert torch.equal(x + x, x * 2)


def test_store_of_an_offloaded_model(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(1500, 1500)
    x = torch.ones(2, 1500)
    expected = model(x).detach()
    backing = ScratchBacking("scratch")
    accelera.offload(model, "28MiB", store="scratch")
    monkeypatch.chdir(folders)
    assert torch.allclose(model(x), expected, rtol=1e-5)
    model(x).sum().backward()
    torch.optim.AdamW(model.parameters()).step()
    backing.create(4096).release()
    backing.close()


def test_spill_folder_of_a_training_budget(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ts = pytest.importorskip("accelera.tensora")
    budget = ts.budget("64MiB", spill_dir="scratch")
    monkeypatch.chdir(folders)
    with budget:
        assert float(ts.sum(ts.ones((4, 4)))) == 16


PROGRAM = """
import os, torch
os.chdir({folder!r})
x = torch.outer(torch.ones(4000), torch.full((4000,), 2.0))
print(int(x.sum().item()))
"""


@pytest.mark.parametrize("named", ["option", "variable"])
def test_spill_folder_of_the_command(folders: Path, named: str) -> None:
    Path("program.py").write_text(PROGRAM.format(folder=str(folders)))
    option = ["--spill-dir", "scratch"] if named == "option" else []
    variable = {"ACCELERA_SPILL": "scratch"} if named == "variable" else {}
    done = subprocess.run(
        [sys.executable, "-m", "accelera", "run", "--budget", "48MiB", *option, "program.py"],
        env={**os.environ, **variable, "TMPDIR": str(folders)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "32000000", done.stderr
