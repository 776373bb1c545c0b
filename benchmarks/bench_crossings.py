"""Files that one small piece of work passes: a product, a task, an offloaded weight, a caught call.

A file counts when a function of it is called, in any thread, after a first time that loads and learns.
Crossings are calls that lead from one file into another.

python -m benchmarks crossings
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import accelera
from accelera.execution import StrategyManager
from benchmarks.machine import save

PACKAGE = str(Path(accelera.__file__).parent)
MODULES = """
import sys, numpy, accelera
for name in ("a.npy", "b.npy"):
    numpy.save(name, numpy.ones((64, 64), numpy.float32))
engine = accelera.MatrixEngine()
engine.matmul("a.npy", "b.npy", out="c.npy", budget="64MiB")
print(sum(name.split(".")[0] == "accelera" for name in sys.modules))
"""


def main(arguments: list[str]) -> dict[str, Any]:
    """Print and save the modules that a product loads, and the files that work passes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks crossings")
    parser.add_argument("--save")
    parser.add_argument("--small", action="store_true", help="the same: it is small")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        figures: dict[str, Any] = {"modules": modules_loaded(folder)}
        print(f"modules loaded by a product of two files: {figures['modules']}")
        try:
            for make in (product, task, weight, call):
                found = figures[make.__name__] = crossed(make(folder))
                print(
                    f"{make.__name__:8} {found['files']:3} files, {found['crossings']:4} calls between them"
                )
        finally:
            accelera.disable()
    if options.save:
        print("saved", save(options.save, figures))
    return figures


def modules_loaded(folder: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", MODULES], cwd=folder, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def product(folder: str) -> Callable[[], Any]:
    """Return a call that multiplies two existing files of 64 x 64 numbers."""
    a, b, c = (f"{folder}/{name}.npy" for name in "abc")
    engine = accelera.MatrixEngine()
    return lambda: engine.matmul(a, b, out=c, budget="64MiB")


def task(_folder: str) -> Callable[[], Any]:
    """Return a call that runs a batch of three tasks on the CPU."""
    manager = StrategyManager()
    return lambda: manager.execute([1, 2, 3], lambda number: number + 1)


def weight(folder: str) -> Callable[[], Any]:
    """Return a call that uses a weight which is not resident."""
    layers = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024, bias=False) for _ in range(12)])
    model = accelera.offload(layers, budget="40MiB", store=folder)
    x = torch.ones(1, 1024)

    def once() -> None:
        with torch.no_grad():
            model[0](x)

    for _ in range(3):
        with torch.no_grad():
            model(x)
    return once


def call(_folder: str) -> Callable[[], Any]:
    """Return a call of torch's product that is intercepted and cut into chunks; interception stays on."""
    a, b = torch.ones(3000, 64), torch.ones(64, 3000)
    accelera.enable(budget="30MiB", min_size=1024)
    return lambda: torch.mm(a, b)


def crossed(run: Callable[[], Any]) -> dict[str, int]:
    """Return the number of files whose functions are called, and of calls from one to another."""
    run()
    files: set[str] = set()
    crossings = 0

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal crossings
        here = frame.f_code.co_filename
        if event == "call" and here.startswith(PACKAGE):
            files.add(here)
            caller = frame.f_back.f_code.co_filename if frame.f_back else ""
            crossings += caller.startswith(PACKAGE) and caller != here

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return {"files": len(files), "crossings": crossings}


if __name__ == "__main__":
    main(sys.argv[1:])
