"""Build with CUDA, CUDA tests and GPU benchmarks, on a machine with a GPU, in less than ten minutes.

    make gpu-check PYTHON=python3          the python whose torch finds the GPU
    python tools/gpu_check.py --dry-run --architecture 90

Nothing is installed into that python's environment and nothing is fetched: scikit-build-core, nanobind,
CMake and ninja are to be there, as are the core dependencies and pytest. The build goes to build/gpu. What a
missing package or the time does not allow is skipped and told. Results: benchmarks/results/gpu*.json.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "build" / "gpu" / "site"
LIMIT_S = 570
NEEDED = (
    *("scikit_build_core", "nanobind", "pip"),
    *(
        "cloudpickle",
        "ml_dtypes",
        "numpy",
        "psutil",
        "rich",
        "safetensors",
        "scipy",
        "scipy_openblas32",
        "threadpoolctl",
        "typer",
    ),
    *(("exceptiongroup",) if sys.version_info < (3, 11) else ()),
    *("hypothesis", "pytest"),
)
"""Modules that the build, the package and the tests take."""


class Step(NamedTuple):
    """A command, how long it may take, and a module without which it is skipped."""

    name: str
    command: list[str]
    limit_s: float
    counts: bool = True
    """Whether the check fails when this step does."""
    needs: tuple[str, ...] = ()


def main(arguments: list[str]) -> int:
    """Run the steps; return the exit status."""
    parser = argparse.ArgumentParser(prog="python tools/gpu_check.py")
    parser.add_argument("--dry-run", action="store_true", help="say what would be run")
    parser.add_argument("--architecture", help="compute capability without a point; default: the device's")
    parser.add_argument("--save", default="gpu_check", help="name of the file in benchmarks/results")
    parser.add_argument("--small", action="store_true", help="benchmarks in their small form")
    options = parser.parse_args(arguments)
    device = {"architecture": options.architecture} if options.dry_run else find_device()
    if isinstance(device, str):
        print(f"gpu-check: {device}", file=sys.stderr)
        return 1
    if options.architecture:
        device["architecture"] = options.architecture
    planned = steps(device["architecture"], small=options.small)
    if options.dry_run:
        for step in planned:
            print(f"{step.name}: {' '.join(step.command)}")
        return 0
    print(f"gpu-check: {device['name']}, torch {device['torch']}, CUDA {device['cuda']}", flush=True)
    done = run(planned)
    save(options.save, device, done)
    return 0 if all(each["outcome"] in ("passed", "skipped") or not each["counts"] for each in done) else 1


def find_device() -> dict[str, Any] | str:
    """Return torch's facts of the device and the architecture to build for, or why nothing can be checked."""
    if not _has_driver():
        return "there is no NVIDIA GPU on this machine: no driver is there, and nothing to check"
    if importlib.util.find_spec("torch") is None:
        return f"{sys.executable} has no torch; name the python that has: make gpu-check PYTHON=…"
    import torch

    if torch.version.cuda is None or not torch.cuda.is_available():
        return (
            f"torch {torch.__version__} has no use of this machine's NVIDIA GPU; install one built for CUDA"
        )
    if shutil.which("nvcc") is None:
        return "nvcc is not on the PATH; install the CUDA toolkit of the driver's version"
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    missing += [name for name in ("cmake", "ninja") if not _has_tool(name)]
    if missing:
        return f"{sys.executable} lacks {', '.join(missing)}; add them to its environment"
    major, minor = torch.cuda.get_device_capability()
    return {
        "architecture": f"{major}{minor}",
        "name": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": sys.version.split()[0],
    }


def _has_driver() -> bool:
    """Return whether a driver of NVIDIA's shows itself, also inside Windows' subsystem for Linux."""
    devices = (*Path("/dev").glob("nvidia[0-9]*"), *Path("/dev").glob("dxg"))
    return bool(devices) or shutil.which("nvidia-smi") is not None


def _has_tool(name: str) -> bool:
    return shutil.which(name) is not None or importlib.util.find_spec(name) is not None


def steps(architecture: str | None, *, small: bool) -> list[Step]:
    """Return what is to be done, the most important first."""
    tests = [*_PYTEST, "-m", "cuda", "-p", "no:cacheprovider", *cuda_tests()]
    checker = ["compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9"]
    matmul = "--edge 8192 --budget 256MiB --rounds 1"
    offload = "--rows 64 --budget 512MB --passes 3"
    return [
        Step("build", build_command(architecture), 300),
        Step("kernels", [sys.executable, "-c", _HAS_KERNELS], 60),
        Step("tests", tests, 240),
        Step("tensora", [*_PYTEST, "tests/tensora/test_cuda.py"], 200),
        Step("gpu", _benchmark("gpu", "--small" if small else ""), 90),
        Step("matmul", _benchmark("matmul", "--small" if small else matmul, files=True), 90),
        Step(
            "offload",
            _benchmark("offload", "--small" if small else offload, files=True),
            120,
            needs=("accelerate", "transformers"),
        ),
        Step("memcheck", [*checker, *_PYTEST, "-m", "cuda", "tests/native/test_igemm.py"], 90),
    ]


_PYTEST = [
    *(sys.executable, "-m", "pytest", "-q"),
    *("-o", "addopts=--import-mode=importlib", "-o", "timeout=120", "-W", "default"),
]
_HAS_KERNELS = "from accelera import _native; assert _native.cuda_compiled(), 'built without the kernels'"


def _benchmark(name: str, options: str, *, files: bool = False) -> list[str]:
    """Return the command of one benchmark on the GPU; ``files``: it writes some, beside what was built."""
    folder = ["--folder", str(SITE.parent)] if files else []
    saved = ["--save", name if name == "gpu" else f"gpu_{name}"]
    command = [sys.executable, "-m", "benchmarks", name, "--device", "cuda:0"]
    return [*command, *options.split(), *folder, *saved]


def build_command(architecture: str | None) -> list[str]:
    """Return the command that builds the package for one architecture into a folder of its own."""
    return [
        *(
            sys.executable,
            "-m",
            "pip",
            "install",
            "--disable-pip-version-check",
            "-q",
            "--no-build-isolation",
        ),
        *("--no-deps", "--no-index", "--upgrade", "--target", str(SITE)),
        *("-C", "cmake.define.ACCELERA_CUDA=ON"),
        *("-C", f"cmake.define.CMAKE_CUDA_ARCHITECTURES={architecture or 'native'}"),
        *("-C", f"build-dir={SITE.parent / 'cmake'}"),
        str(ROOT),
    ]


def cuda_tests() -> list[str]:
    """Return the files with tests for a GPU: others may need packages that are not here to be read at all."""
    marked = re.compile(r"pytest\.mark\.cuda|from tests\.gpus import BOTH")
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(each.relative_to(ROOT)) for each in files if marked.search(each.read_text())]


def run(planned: list[Step]) -> list[dict[str, Any]]:
    """Run the steps while there is time; after a failed build, skip the others."""
    began, done = time.monotonic(), list[dict[str, Any]]()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SITE), str(ROOT)])}
    for step in planned:
        left_s = LIMIT_S - (time.monotonic() - began)
        build_failed = any(
            each["outcome"] == "failed" for each in done if each["name"] in ("build", "kernels")
        )
        outcome = _skipped(step, left_s, build_failed=build_failed) or _run_step(
            step, min(left_s, step.limit_s), environment
        )
        done.append({"name": step.name, "counts": step.counts, **outcome})
        print(f"gpu-check: {step.name}: {outcome['outcome']}, {outcome.get('why', '')}", flush=True)
    return done


def _skipped(step: Step, left_s: float, *, build_failed: bool) -> dict[str, Any] | None:
    """Return that a step is skipped, and why; None when it is to be run."""
    missing = [name for name in step.needs if importlib.util.find_spec(name) is None]
    if not shutil.which(step.command[0]):
        missing.append(step.command[0])
    reasons = (
        (build_failed, "nothing was built"),
        (bool(missing), f"{', '.join(missing)} not installed"),
        (left_s < 30, f"{left_s:.0f} s are left of {LIMIT_S}"),
    )
    why = next((why for holds, why in reasons if holds), None)
    return None if why is None else {"outcome": "skipped", "why": why}


def _run_step(step: Step, limit_s: float, environment: dict[str, str]) -> dict[str, Any]:
    began = time.monotonic()
    print(f"gpu-check: {step.name}: {' '.join(step.command)}", flush=True)
    try:
        process = subprocess.run(
            step.command, cwd=ROOT, env=environment, timeout=limit_s, check=False, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        output, status = process.stdout, process.returncode
    except subprocess.TimeoutExpired as error:
        output, status = _text(error.stdout), None
    seconds = time.monotonic() - began
    print(output[-8000:], flush=True)
    why = f"no end within {limit_s:.0f} s" if status is None else f"exit {status} after {seconds:.0f} s"
    last = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR")) or " passed" in line]
    outcome = "passed" if status == 0 else "failed"
    return {"outcome": outcome, "why": why, "seconds": round(seconds, 1), "told": last[-60:]}


def _text(output: Any) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


def save(name: str, device: dict[str, Any], done: list[dict[str, Any]]) -> None:
    """Write what came of the steps beside the benchmarks' figures, with date, commit and device."""
    sys.path[:0] = [str(SITE), str(ROOT)]
    from benchmarks.machine import save as saved

    print("gpu-check: saved", saved(name, {"device": device, "steps": done}))
    print(json.dumps({each["name"]: each["outcome"] for each in done}))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
