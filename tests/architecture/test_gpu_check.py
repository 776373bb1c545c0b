"""`make gpu-check` where there is no GPU, and what it would do where there is one."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement

from tests.architecture.repository import ROOT, run_python
from tests.conftest import has_driver
from tests.core.environment import core_requirements

TOOL = ROOT / "tools" / "gpu_check.py"


@pytest.fixture
def tool(tmp_path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(has_driver(), reason="what a machine without a GPU does")
@pytest.mark.parametrize("options", [[], ["-S"]], ids=["with torch", "without torch"])
def test_without_a_gpu_it_says_so_in_one_line(options: list[str]) -> None:
    ran = run_python(*options, str(TOOL), cwd=ROOT)
    assert ran.returncode == 1
    assert ran.stdout == ""
    assert ran.stderr.splitlines() == [
        "gpu-check: there is no NVIDIA GPU on this machine: no driver is there, and nothing to check"
    ]


def test_a_torch_that_does_not_see_the_gpu_is_told_from_none(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "_has_driver", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert f"torch {torch.__version__} has no use of this machine's NVIDIA GPU" in tool.find_device()
    monkeypatch.setattr(tool.importlib.util, "find_spec", lambda name: None)
    assert f"{sys.executable} has no torch" in tool.find_device()


def test_it_needs_every_core_dependency(tool: ModuleType) -> None:
    core = map(Requirement, core_requirements())
    needed = {Requirement(each).name for each in tool.NEEDED.values()}
    assert {each.name for each in core if each.marker is None or each.marker.evaluate()} < needed


def test_it_says_what_it_would_do() -> None:
    """Built for one architecture with the kernels, from what is there; all files with tests for a GPU."""
    ran = run_python(str(TOOL), "--dry-run", "--architecture", "90", cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    said = dict(line.split(": ", 1) for line in ran.stdout.splitlines())
    for option in ("--no-build-isolation", "--no-index", "ACCELERA_CUDA=ON", "CMAKE_CUDA_ARCHITECTURES=90"):
        assert option in said["build"]
    assert "torch" not in said["build"].replace(str(ROOT), "")
    for part in ("engine", "offload", "interceptor"):
        assert f"tests/{part}/test_cuda.py" in said["tests"]
    assert "tests/execution/test_device_streams.py" in said["tests"]
    assert {"gpu", "matmul", "offload"} <= said.keys()
    assert [*said][2:6] == ["first kernels", "graphs", "budget", "dlpack"], (
        "the steps with the most risk come first"
    )
    for sanitizer in ("memcheck", "racecheck", "synccheck", "initcheck"):
        assert f"compute-sanitizer --tool {sanitizer}" in said[sanitizer]
        assert said[sanitizer].endswith("tools/gpu_kernels.py")


def test_compiler_that_a_machine_lacks_is_named(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "_has_driver", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(tool.shutil, "which", lambda name: None if name == "nvcc" else f"/bin/{name}")
    assert "nvcc is not on the PATH" in tool.find_device()


def test_missing_and_old_packages_are_listed(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = {"scipy_openblas32", "pytest"}
    monkeypatch.setattr(tool.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(tool.importlib.util, "find_spec", lambda name: None if name in absent else object())
    monkeypatch.setattr(tool.importlib.metadata, "version", lambda name: "2.9.2")
    assert tool.missing_packages() == ["scipy_openblas32>=0.3.27", "pytest", "nanobind>=3.1,<4"]


METADATA = "Metadata-Version: 2.1\nName: gpu-check-sample\nVersion: 1.0\n"


@pytest.fixture
def build_folder(tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tool, "BUILD", tmp_path)
    monkeypatch.setattr(tool, "STAND_INS", tmp_path / "stand_ins")
    return tmp_path


def test_packages_are_installed_from_wheels(tool: ModuleType, build_folder: Path) -> None:
    """Into an environment that has the packages of the outer one."""
    wheels = build_folder / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "gpu_check_sample-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("gpu_check_sample.py", "import numpy\n")
        wheel.writestr("gpu_check_sample-1.0.dist-info/METADATA", METADATA)
        wheel.writestr("gpu_check_sample-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("gpu_check_sample-1.0.dist-info/RECORD", "")
    python = tool.prepare(["gpu-check-sample"], wheels)
    assert python == str(build_folder / "env" / "bin" / "python")
    subprocess.run([python, "-c", "import gpu_check_sample"], check=True)
    assert tool.prepare([], wheels) == sys.executable


def test_openblas_of_scipy_stands_in_without_a_network(
    tool: ModuleType, build_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = build_folder / "wheels"
    empty.mkdir()
    assert tool.prepare([tool.NEEDED["scipy_openblas32"], "gpu-check-sample"], empty) == sys.executable
    assert "pip has not installed them" in capsys.readouterr().out
    code = "import accelera.tensora as ts; a = ts.ones((9, 9)); print((a @ a).sum().item())"
    stand_ins = os.pathsep.join([str(build_folder / "stand_ins"), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": stand_ins},
    )
    assert ran.stdout.strip() == "729.0", ran.stderr


def test_steps_have_the_packages_of_the_caller(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere/packages")
    code = "import sys; raise SystemExit('/somewhere/packages' not in sys.path)"
    (outcome,) = tool.run([tool.Step("step", [sys.executable, "-c", code], 60)])
    assert outcome["outcome"] == "passed"


def test_output_has_the_steps_so_far(tool: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "folder" / "result.json"
    code = f"import json; assert len(json.load(open({str(path)!r}))['steps']) == 1"
    planned = [tool.Step(name, [sys.executable, "-c", text], 60) for name, text in (("a", ""), ("b", code))]
    tool.run(planned, results=tool.Results(path, {"name": "NVIDIA H200"}))
    written = json.loads(path.read_text())
    assert written["device"] == {"name": "NVIDIA H200"}
    assert [each["outcome"] for each in written["steps"]] == ["passed", "passed"]


def test_steps_are_carried_out_while_there_is_time(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def step(name: str, code: str, **options: Any) -> Any:
        return tool.Step(name, [sys.executable, "-c", code], options.pop("limit_s", 60), **options)

    def outcomes(*planned: Any) -> dict[str, Any]:
        return {
            each["name"]: (each["outcome"], each["why"].split(" after ")[0]) for each in tool.run(planned)
        }

    assert outcomes(
        step("build", "print('1 passed')"),
        step("bad", "print('FAILED tests/x.py::test_y'); raise SystemExit(3)"),
        step("slow", "import time; time.sleep(60)", limit_s=0.5),
        step("other", "", needs=("no_such_module",)),
        tool.Step("tool", ["no-such-tool"], 60),
    ) == {
        "build": ("passed", "exit 0"),
        "bad": ("failed", "exit 3"),
        "slow": ("failed", "no end within 0 s"),
        "other": ("skipped", "no_such_module not installed"),
        "tool": ("skipped", "no-such-tool not installed"),
    }
    assert outcomes(step("build", "raise SystemExit(1)"), step("tests", "")) == {
        "build": ("failed", "exit 1"),
        "tests": ("skipped", "nothing was built"),
    }
    monkeypatch.setattr(tool, "LIMIT_S", 10)
    assert outcomes(step("build", ""))["build"][0] == "skipped"
    assert "FAILED tests/x.py::test_y" in capsys.readouterr().out


def test_results_are_kept_with_date_commit_and_device(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from benchmarks import machine

    monkeypatch.setattr(machine, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    tool.save("gpu_check", {"name": "NVIDIA H200"}, [{"name": "build", "outcome": "passed"}])
    saved = json.loads((tmp_path / "gpu_check.json").read_text())
    assert {"date", "commit", "accelerator", "versions"} <= saved["machine"].keys()
    assert saved["device"] == {"name": "NVIDIA H200"}
    assert saved["steps"] == [{"name": "build", "outcome": "passed"}]
