"""Python programs, each in a process of its own that begins with torch loaded, most of what it would take.

The processes are forked from one that has loaded what programs load of others, and nothing of ``accelera``.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

LOADED = ["numpy", "pandas", "scipy.optimize", "torch", "torch._dynamo"]
TIMEOUT_S = 840
"""A page that trains on a cluster starts dozens of processes, one after the other."""


class Ended(NamedTuple):
    """How a program ended."""

    returncode: int
    stderr: str


def run_program(program: Path, *words: str, cwd: Path, environment: Mapping[str, str] | None = None) -> Ended:
    """Run a file with no ``ACCELERA_*`` variable but those given."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    told = cwd / "stderr.txt"
    process = context.Process(target=_run, args=(program, words, cwd, dict(environment or {}), told))
    process.start()
    process.join(TIMEOUT_S)
    if process.exitcode is None:
        process.kill()
        process.join()
    return Ended(process.exitcode or 0, told.read_text(encoding="utf-8"))


def _run(program: Path, words: tuple[str, ...], cwd: Path, environment: dict[str, str], told: Path) -> None:
    _take_stderr(told)
    for name in [each for each in os.environ if each.startswith("ACCELERA_")]:
        del os.environ[name]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    os.environ.update({"PATH": path, "RAY_AUTH_MODE": "disabled", **environment})
    os.chdir(cwd)
    sys.argv = [str(program), *words]
    sys.path.insert(0, str(program.parent))
    try:
        runpy.run_path(str(program), run_name="__main__")
    except Exception:
        traceback.print_exc()
        sys.exit(1)


def _take_stderr(told: Path) -> None:
    """Let everything that this process and its children print go to a file, or nowhere."""
    with told.open("wb") as errors, open(os.devnull, "wb") as nowhere:
        os.dup2(errors.fileno(), 2)
        os.dup2(nowhere.fileno(), 1)
