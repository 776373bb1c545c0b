"""What works with the core dependencies alone, and that everything else names the extra to install."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import accelera
from accelera.cli import app
from accelera.trace import write_trace
from tests.architecture.repository import ROOT, packages

RunCore = Callable[..., Any]
PROGRAMS = Path(__file__).parent / "programs"
NEEDS = re.compile(r"\[[\w .]+\] needs (\w+); pip install 'accelera-engine\[(\w+)\]'")


def passes(run_core: RunCore, program: str, *words: str) -> list[str]:
    """Run a program in the core environment; return the lines that it printed."""
    ran = run_core("-W", "error", str(PROGRAMS / f"{program}.py"), *words)
    assert ran.returncode == 0, ran.stderr
    lines: list[str] = ran.stdout.splitlines()
    return lines


@pytest.mark.parametrize("program", ["products", "operations", "matrix", "batches", "paper", "hardware"])
def test_works_with_the_core_alone(program: str, run_core: RunCore) -> None:
    passes(run_core, program)


@pytest.mark.parametrize(
    "example", ["demo", "expressions", "out_of_core", "quickstart", "resume", "strategy"]
)
def test_examples_run_with_the_core_alone(example: str, run_core: RunCore) -> None:
    """``make demo`` installs nothing else."""
    ran = run_core(str(ROOT / "examples" / f"{example}.py"), ACCELERA_EXAMPLE_SMALL="1")
    assert ran.returncode == 0, ran.stderr


def test_every_public_name_can_be_had_and_says_what_it_needs(run_core: RunCore) -> None:
    """``from accelera import *``, ``dir``, ``hasattr`` and completion work; using what is absent says so."""
    lines = passes(run_core, "doors", *sorted({*packages()} - {"accelera.testing"}))
    said = dict(line.split(" | ") for line in lines)
    assert {"enable", "offload", "plan_offload", "Offloaded"} <= said.keys()
    assert not {"Matrix", "MatrixEngine", "capture", "stats", "StrategyManager"} & said.keys()
    for name, message in said.items():
        assert NEEDS.fullmatch(message), message
        assert message.startswith(f"[{name}]")


def test_the_contracts_say_that_they_need_pytest(run_core: RunCore) -> None:
    ran = run_core("-c", "import accelera.testing")
    assert "[testing] needs pytest; pip install 'accelera-engine[dev]'" in ran.stderr


USES = {
    "torch": (
        "accelera.capture(None, None)",
        "accelera.estimate(None)",
        "accelera.enable()",
        "accelera.offload(None)",
        "accelera.offloaded(None)",
        "accelera.plan_offload(None, None)",
        "accelera.offload_checkpoint('x')",
        "accelera.predict_compile(lambda: None, inputs=1)",
        "accelera.capture.capture_script('x.py')",
        "accelera.interceptor.should_intercept(a, a)",
        "from accelera.interceptor import hooks",
        "accelera.execution.TorchDeviceExecutor()",
        "accelera.MatrixEngine('cuda')",
        "accelera.Matrix([1]).tensor()",
    ),
    "trace": (
        "write_trace(trace, 'x.parquet')",
        "write_trace(trace, 'x.csv')",
        "read_trace('x.json')",
        "trace.to_pandas()",
        "accelera.predict_eviction_scores(trace)",
        "accelera.sweep(trace, ['lru'], ['50%']).to_pandas()",
    ),
    "zarr": ("engine.copy(a, 'a.zarr')", "engine.matmul(a, a, out='c.zarr')"),
    "hdf5": ("engine.copy(a, 'a.h5')", "Path('b.h5').touch(), engine.sum('b.h5')"),
    "remote": ("accelera.open_store('memory://a.npy')", "engine.sum('https://127.0.0.1/a.npy')"),
    "ray": ("accelera.execution.RayCluster()", "engine.matmul(a, a, out='c.npy', cluster='ray')"),
    "learned": ("score(trace, 'learned')", "train_scorer([trace])"),
    "llm": ("score(trace, 'llm', path='model')", "accelera.callbacks.TransformersCallback()"),
    "lightning": ("accelera.callbacks.LightningCallback()",),
    "plot": ("accelera.sweep(trace, ['lru'], ['50%']).plot('x.png')",),
    "metrics": ("accelera.execution.PrometheusObserver()", "accelera.execution.OpenTelemetryObserver()"),
}
"""Uses of what each extra brings."""


@pytest.mark.parametrize("extra", USES)
def test_what_an_extra_brings_names_it(extra: str, run_core: RunCore) -> None:
    lines = passes(run_core, "absent", *USES[extra])
    assert len(lines) == len(USES[extra])
    assert [line for line in lines if not (said := NEEDS.match(line)) or said[2] != extra] == []


VERBS = {
    "info": (["info"], 0),
    "plan matmul": (["plan", "matmul", "A.npy", "A.npy"], 0),
    "plan gram": (["plan", "gram", "A.npy"], 0),
    "plan evaluate": (["plan", "evaluate", "A + A", "A=A.npy"], 0),
    "evaluate": (["evaluate", "A + A", "A=A.npy", "-o", "E.npy"], 0),
    "matmul": (["matmul", "A.npy", "A.npy", "-o", "C.npy", "--budget", "40MiB"], 0),
    "gram": (["gram", "A.npy", "-o", "G.npy"], 0),
    "copy": (["copy", "A.npy", "B.bin"], 0),
    "transpose": (["transpose", "A.npy", "T.npy"], 0),
    "strategy": (["strategy", "-n", "10"], 0),
    "predict-compile": (["predict-compile", "program.py"], 0),
    "run": (["run", "program.py"], 0),
    "trace generate": (["trace", "generate", "-o", "made.json"], 0),
    "simulate": (["simulate", "t.json", "--budget", "50%"], 2),
    "sweep": (["sweep", "t.json"], 2),
    "advise": (["advise", "t.json"], 2),
    "estimate": (["estimate", "config.json"], 2),
    "build-shim": (["build-shim"], 2),
    "trace capture": (["trace", "capture", "program.py"], 2),
    "trace stats": (["trace", "stats", "t.json"], 2),
    "trace convert": (["trace", "convert", "t.json", "t.csv"], 2),
    "report": (["report", "t.json"], 2),
    "serve": (["serve"], 2),
}
"""Every verb, and how it ends with the core alone."""


def test_every_verb_is_tried() -> None:
    group: Any = typer.main.get_command(app)
    groups = ("plan", "trace")
    inner = {f"{outer} {name}" for outer in groups for name in group.commands[outer].commands}
    assert VERBS.keys() == (group.commands.keys() - set(groups)) | inner


def test_verbs_work_or_name_their_extra(run_core: RunCore, tmp_path: Path) -> None:
    np.save(tmp_path / "A.npy", np.ones((64, 64), np.float32))
    (tmp_path / "program.py").write_text("print(1 + 1)\n")
    (tmp_path / "config.json").write_text("{}")
    write_trace(accelera.generate_synthetic_trace(num_layers=1), tmp_path / "t.json")
    for name, (words, code) in VERBS.items():
        ran = run_core("-m", "accelera", *words)
        assert ran.returncode == code, f"{name}: {ran.stdout}{ran.stderr}"
        assert code == 0 or NEEDS.search(ran.stderr), f"{name}: {ran.stderr}"
