"""``accelera estimate``: models named by file or in Python, mistakes in one line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

NETS = """
import torch
from torch import nn

def mlp():
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 10))

def with_inputs():
    return mlp(), torch.randn(32, 784)

class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x, *, mask):
        return self.inner(x).masked_fill(mask, 0.0)

def broken():
    raise KeyError("mine")

model = mlp()
NUMBER = 3
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "nets_of_test.py").write_text(NETS)
    yield tmp_path
    sys.modules.pop("nets_of_test", None)


def test_a_function_in_a_file(run: Run) -> None:
    ran = run("estimate", "nets_of_test.py:mlp", "--input", "32x784", "--budget", "2MiB")
    assert ran.exit_code == 0, ran.output
    for said in ("Sequential, 407.1 k parameters", "float32", "bfloat16", "fits", "over", "takes at most"):
        assert said in ran.stdout


@pytest.mark.parametrize("model", ["nets_of_test.py:with_inputs", "nets_of_test:with_inputs"])
def test_a_function_that_brings_its_inputs(run: Run, model: str) -> None:
    found = json.loads(run("estimate", model, "--mode", "inference", "--dtype", "float32", "--json").stdout)
    (phase,) = found["phases"]
    assert (phase["name"], phase["dtype"]) == ("inference", "float32")
    assert phase["most"]["inputs"] == 32 * 784 * 4
    assert phase["most"]["weights"] == (784 * 512 + 512 + 512 * 10 + 10) * 4
    assert sum(phase["at_peak"].values()) == phase["peak_bytes"]


def test_a_module_that_is_there(run: Run) -> None:
    words = ("--mode", "training", "--optimizer", "none", "-i", "4x784", "--dtype", "float32", "--json")
    found = json.loads(run("estimate", "nets_of_test.py:model", *words).stdout)
    assert found["optimizer"] == "none"
    assert found["phases"][0]["most"]["optimizer_state"] == 0


def test_named_inputs_of_other_types(run: Run) -> None:
    words = ("-i", "x=4x8", "-i", "mask=4x8:bool", "--mode", "inference", "--dtype", "float32", "--json")
    found = json.loads(run("estimate", "nets_of_test:Masked", *words).stdout)
    assert found["phases"][0]["most"]["inputs"] == 4 * 8 * 4 + 4 * 8


def test_a_configuration_with_its_cache(run: Run, folder: Path) -> None:
    config = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 96, "vocab_size": 100}))
    for model in (".", "config.json"):
        ran = run("estimate", model, "--batch", "2", "--context", "16", "--budget", "1MiB")
        assert ran.exit_code == 0, ran.output
        for said in ("batch 2, context 16", "generation", "kv cache", "per token and row"):
            assert said in ran.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nets_of_test.py:nothing",), "has no nothing"),
        (("nets_of_test.py",), "nets_of_test.py:build"),
        (("none.py:mlp",), "no file none.py"),
        (("no_such_module_here:mlp",), "no module no_such_module_here"),
        (("nets_of_test.py:broken",), "KeyError: 'mine'"),
        (("nets_of_test.py:NUMBER", "-i", "1x1"), "a int"),
        (("nets_of_test.py:mlp",), "--input SHAPE"),
        (("nets_of_test.py:mlp", "-i", "32x784", "--mode", "nope"), "'--mode': 'nope' is not one"),
        (("nets_of_test.py:mlp", "-i", "32x784", "--optimizer", "nope"), "'--optimizer': 'nope' is not one"),
        (("nets_of_test.py:mlp", "-i", "32by784"), "32x784"),
        (("nets_of_test.py:mlp", "-i", "32x784:float5"), "float5"),
        (("nets_of_test.py:Masked", "-i", "x=4x8", "-i", "4x8:bool"), "name all inputs or none"),
        (("nets_of_test.py:mlp", "-i", "32x7"), "784"),
        (("nets_of_test.py:mlp", "-i", "32x784", "--dtype", "float5"), "float5"),
        (("nets_of_test.py:mlp", "-i", "32x784", "--budget", "lots"), "'--budget'"),
        (("nets_of_test.py:mlp", "-i", "32x784", "--batch", "3"), "batch="),
    ],
)
def test_mistakes_are_one_line_and_usage(run: Run, words: tuple[str, ...], said: str) -> None:
    ran = run("estimate", *words)
    assert ran.exit_code == 2
    assert said in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_a_file_that_is_no_configuration_is_named_by_one_complaint(run: Run, tmp_path: Path) -> None:
    (tmp_path / "e.json").write_text("{}")
    ran = run("estimate", str(tmp_path / "e.json"))
    assert ran.exit_code == 2
    assert ran.stderr.startswith("error: [estimate] ")
    assert "ValueError" not in ran.stderr


def test_a_file_that_is_not_there(run: Run) -> None:
    ran = run("estimate", "none/config.json")
    assert ran.exit_code == 4
    assert "none/config.json" in ran.stderr
