"""Build with CUDA, CUDA tests and GPU benchmarks, on a machine with a GPU, in less than ten minutes.

    make gpu-check PYTHON=python3          the python whose torch finds the GPU
    make gpu-check ARGS="--output result.json --wheels folder"
    python tools/gpu_check.py --dry-run --architecture 90

That python needs torch, and the machine needs the CUDA toolkit. Pip installs missing packages into
build/gpu/env, which takes all others from that python. Without a network they come from the wheels in
``--wheels``; if that fails, the remaining steps run, with SciPy's OpenBLAS in place of scipy_openblas32.
The build goes to build/gpu. Steps run in the order of their risk; a step that lacks a package or time is
skipped, with the reason. Results, also of the steps so far, go to ``--output`` and to benchmarks/results.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "gpu"
SITE = BUILD / "site"
STAND_INS = BUILD / "stand_ins"
LIMIT_S = 570
INSTALL_LIMIT_S = 120
NEEDED = {
    "scikit_build_core": "scikit-build-core>=0.10",
    "nanobind": "nanobind>=3.1,<4",
    "pip": "pip",
    "cloudpickle": "cloudpickle>=3",
    **({"exceptiongroup": "exceptiongroup"} if sys.version_info < (3, 11) else {}),
    "ml_dtypes": "ml_dtypes>=0.5",
    "numpy": "numpy>=2.0",
    "psutil": "psutil>=5.9",
    "rich": "rich>=13",
    "safetensors": "safetensors>=0.4.3",
    "scipy": "scipy>=1.11",
    "scipy_openblas32": "scipy_openblas32>=0.3.27",
    "lazy_loader": "lazy_loader>=0.6",
    "threadpoolctl": "threadpoolctl>=3.5",
    "typer": "typer>=0.19",
    "hypothesis": "hypothesis",
    "pytest": "pytest",
}
"""Packages that the build, the package and the tests take, by the module that each has."""
IGEMM_TESTS = "tests/native/test_igemm.py"
OLDEST_NANOBIND = (3, 1)


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
    options = _parser().parse_args(arguments)
    device = {"architecture": options.architecture} if options.dry_run else find_device()
    if isinstance(device, str):
        print(f"gpu-check: {device}", file=sys.stderr)
        return 1
    if options.architecture:
        device["architecture"] = options.architecture
    if options.dry_run:
        for step in steps(device["architecture"], small=options.small):
            print(f"{step.name}: {' '.join(step.command)}")
        return 0
    print(f"gpu-check: {device['name']}, torch {device['torch']}, CUDA {device['cuda']}", flush=True)
    began = time.monotonic()
    python = prepare(missing_packages(), options.wheels)
    planned = steps(device["architecture"], small=options.small, python=python)
    done = run(planned, began, Results(options.output, device))
    save(options.save, device, done)
    return 0 if all(each["outcome"] in ("passed", "skipped") or not each["counts"] for each in done) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python tools/gpu_check.py")
    parser.add_argument("--dry-run", action="store_true", help="print the commands, and run none")
    parser.add_argument("--architecture", help="compute capability without a point; default: the device's")
    parser.add_argument("--save", default="gpu_check", help="name of the file in benchmarks/results")
    parser.add_argument("--output", type=Path, help="file for the results, written after every step")
    parser.add_argument("--wheels", type=Path, help="folder of wheels for packages that are missing")
    parser.add_argument("--small", action="store_true", help="benchmarks in their small form")
    return parser


class Results(NamedTuple):
    """File that has the outcome of every step so far."""

    path: Path | None
    device: dict[str, Any]

    def write(self, done: list[dict[str, Any]]) -> None:
        """Write the outcomes, if there is a file."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps({"device": self.device, "steps": done}, indent=1) + "\n")


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
    major, minor = torch.cuda.get_device_capability()
    return {
        "architecture": f"{major}{minor}",
        "name": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": sys.version.split()[0],
    }


# --- packages


def missing_packages() -> list[str]:
    """Return the requirements of the packages and tools that are missing, or too old."""
    missing = [NEEDED[name] for name in NEEDED if importlib.util.find_spec(name) is None]
    if NEEDED["nanobind"] not in missing and _version("nanobind") < OLDEST_NANOBIND:
        missing.append(NEEDED["nanobind"])
    return missing + [name for name in ("cmake", "ninja") if not _has_tool(name)]


def _version(name: str) -> tuple[int, ...]:
    try:
        words = importlib.metadata.version(name).split(".")
    except importlib.metadata.PackageNotFoundError:
        return ()
    return tuple(int(word) for word in words[:2] if word.isdigit())


def prepare(missing: list[str], wheels: Path | None) -> str:
    """Install packages into an environment; return its python, or this one if that did not succeed."""
    if not missing:
        return sys.executable
    print(f"gpu-check: {sys.executable} lacks {', '.join(missing)}", flush=True)
    python = _environment()
    source = ["--no-index", "--find-links", str(wheels)] if wheels else []
    command = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *source]
    command += ["--retries", "1", "--timeout", "10", "-c", str(ROOT / "constraints.txt"), *missing]
    try:
        installed = subprocess.run(command, timeout=INSTALL_LIMIT_S, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        installed = False
    if installed:
        return python
    print("gpu-check: pip has not installed them; steps that need them will fail or be skipped", flush=True)
    if NEEDED["scipy_openblas32"] in missing:
        stand_in_for_openblas()
    return sys.executable


def _environment() -> str:
    """Make an environment with the packages of this python; return its python."""
    folder = BUILD / "env"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    ask = "import site; print(site.getsitepackages()[0])"
    site_packages = subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout
    paths = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (Path(site_packages.strip()) / "outer.pth").write_text("\n".join(paths) + "\n")
    return python


def stand_in_for_openblas() -> bool:
    """Put the OpenBLAS of SciPy's wheel where that of scipy_openblas32 would be; whether SciPy has one."""
    scipy = importlib.util.find_spec("scipy")
    libraries = Path(str(scipy.origin)).parent.parent / "scipy.libs" if scipy else Path("missing")
    if not list(libraries.glob("libscipy_openblas*")):
        return False
    package = STAND_INS / "scipy_openblas32"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").touch()
    if not (package / "lib").exists():
        (package / "lib").symlink_to(libraries, target_is_directory=True)
    return True


def _has_driver() -> bool:
    """Return whether a driver of NVIDIA's shows itself, also inside Windows' subsystem for Linux."""
    devices = (*Path("/dev").glob("nvidia[0-9]*"), *Path("/dev").glob("dxg"))
    return bool(devices) or shutil.which("nvidia-smi") is not None


def _has_tool(name: str) -> bool:
    return shutil.which(name) is not None or importlib.util.find_spec(name) is not None


def steps(architecture: str | None, *, small: bool, python: str = sys.executable) -> list[Step]:
    """Return the steps, those with the most risk first."""
    matmul = "--edge 8192 --budget 256MiB --rounds 1"
    offload = "--rows 64 --budget 512MB --passes 3"
    marked = [*_pytest(python), "-m", "cuda", "-p", "no:cacheprovider", *cuda_tests()]
    return [
        Step("build", build_command(architecture, python), 300),
        Step("kernels", [python, "-c", _HAS_KERNELS], 60),
        Step("first kernels", [python, "tools/gpu_kernels.py"], 120),
        Step("graphs", [*_pytest(python), "tests/tensora/test_jit_cuda.py"], 120),
        Step("budget", [*_pytest(python), "tests/tensora/test_budget_cuda.py"], 60),
        Step("dlpack", [*_pytest(python), "-m", "cuda", "tests/tensora/test_cuda_torch.py"], 60),
        *[
            Step(tool, [*_sanitizer(tool), python, "tools/gpu_kernels.py"], 90, counts=tool != "initcheck")
            for tool in ("memcheck", "racecheck", "synccheck", "initcheck")
        ],
        Step("tests", marked, 200),
        Step("tensora", [*_pytest(python), "tests/tensora/test_cuda.py"], 150),
        Step("igemm", [*_sanitizer("memcheck"), *_pytest(python), "-m", "cuda", IGEMM_TESTS], 90),
        Step("gpu", _benchmark(python, "gpu", "--small" if small else ""), 90),
        Step("matmul", _benchmark(python, "matmul", "--small" if small else matmul, files=True), 90),
        Step(
            "offload",
            _benchmark(python, "offload", "--small" if small else offload, files=True),
            120,
            needs=("accelerate", "transformers"),
        ),
    ]


_HAS_KERNELS = "from accelera import _native; assert _native.cuda_compiled(), 'built without the kernels'"


def _pytest(python: str) -> list[str]:
    options = ["-o", "addopts=--import-mode=importlib", "-o", "timeout=120", "-W", "default"]
    return [python, "-m", "pytest", "-q", *options]


def _sanitizer(tool: str) -> list[str]:
    """Return the command that runs another one under one of the tools of compute-sanitizer."""
    sibling = Path(shutil.which("nvcc") or "nvcc").resolve().parent / "compute-sanitizer"
    path = shutil.which("compute-sanitizer") or (str(sibling) if sibling.exists() else "compute-sanitizer")
    return [path, "--tool", tool, "--error-exitcode", "9"]


def _benchmark(python: str, name: str, options: str, *, files: bool = False) -> list[str]:
    """Return the command of one benchmark on the GPU; ``files``: it writes some, next to the build."""
    folder = ["--folder", str(BUILD)] if files else []
    saved = ["--save", name if name == "gpu" else f"gpu_{name}"]
    command = [python, "-m", "benchmarks", name, "--device", "cuda:0"]
    return [*command, *options.split(), *folder, *saved]


def build_command(architecture: str | None, python: str = sys.executable) -> list[str]:
    """Return the command that builds the package for one architecture into its own folder."""
    return [
        *(python, "-m", "pip", "install", "--disable-pip-version-check", "-q", "--no-build-isolation"),
        *("--no-deps", "--no-index", "--upgrade", "--target", str(SITE)),
        *("-C", "cmake.define.ACCELERA_CUDA=ON"),
        *("-C", f"cmake.define.CMAKE_CUDA_ARCHITECTURES={architecture or 'native'}"),
        *("-C", f"build-dir={BUILD / 'cmake'}"),
        str(ROOT),
    ]


def cuda_tests() -> list[str]:
    """Return the files with tests for a GPU: others may need packages that are not here to be read at all."""
    marked = re.compile(r"pytest\.mark\.cuda|from tests\.gpus import BOTH")
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(each.relative_to(ROOT)) for each in files if marked.search(each.read_text())]


def run(
    planned: Sequence[Step], began: float | None = None, results: Results | None = None
) -> list[dict[str, Any]]:
    """Run the steps while there is time; after a failed build, skip the others."""
    began, done = time.monotonic() if began is None else began, list[dict[str, Any]]()
    results = results or Results(None, {})
    paths = [str(SITE), str(STAND_INS), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    for step in planned:
        left_s = LIMIT_S - (time.monotonic() - began)
        build_failed = any(
            each["outcome"] == "failed" for each in done if each["name"] in ("build", "kernels")
        )
        outcome = _skipped(step, left_s, build_failed=build_failed) or _run_step(
            step, min(left_s, step.limit_s), environment
        )
        done.append({"name": step.name, "counts": step.counts, **outcome})
        results.write(done)
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
