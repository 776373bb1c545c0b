"""Which machine, commit and versions a figure belongs to, and where results are kept."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

_SAVED = "benchmarks/results"
RESULTS = Path(__file__).parent / "results"
LIBRARIES = ("numpy", "scipy", "torch", "accelerate", "dask", "cubed", "zarr", "joblib", "loky", "ray")


def describe() -> dict[str, Any]:
    """Return date, commit, processor, cores, memory and library versions."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": _commit(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "accelerator": _accelerator(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in LIBRARIES},
    }


def save(name: str, figures: dict[str, Any]) -> Path:
    """Write ``figures`` with the machine's description to ``results/<name>.json``; return the path."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": describe(), **figures}, indent=1) + "\n")
    return path


def add(name: str, case: str, figures: dict[str, Any]) -> Path:
    """Put the figures of one case into ``results/<name>.json`` beside those of others; return the path.

    Every case tells when and at which commit it was measured; the machine is that of the latest.
    """
    path = RESULTS / f"{name}.json"
    cases = json.loads(path.read_text()).get("cases", {}) if path.exists() else {}
    machine = describe()
    cases[case] = {"date": machine["date"], "commit": machine["commit"], **figures}
    return save(name, {"cases": cases})


def _commit() -> str:
    """Return the commit, and whether anything but results has changed since."""
    commit = _git("describe", "--always") or "unknown"
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":/", f":(exclude,top){_SAVED}")
    return f"{commit}-dirty" if changed else commit


def _git(*command: str) -> str:
    try:
        return subprocess.run(["git", *command], capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""


def _accelerator() -> str | None:
    """Return the GPU's name and the CUDA of a torch that is loaded and uses it."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    return f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
