"""A model bigger than its memory: 24 x Linear(4096) on disk, run by everybody who offloads, and trained.

Each contender runs in a process of its own on the same files. A second round is inside a memory control
group, the files dropped from the page cache first. The floor is the larger of what the disk needs for
every byte once and what the arithmetic needs in memory. The last part generates with and trains a small
GPT-style model with and without offloading.

    python -m benchmarks offload                     1.6 GB of weights, B = 1, 64, 512
    python -m benchmarks offload --rows 64 --passes 3 --cap 700MB
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from accelera import format_bytes, parse_bytes
from accelera.stores._internal import FlatFile, Placement
from benchmarks.cap import alone, capped, drop_cache, told
from benchmarks.machine import save
from benchmarks.offload_contenders import CONTENDERS, Task, write_model

ON_CPU = ("in memory", "accelerate disk_offload", "mapped file", "double buffer", "accelera")
ON_GPU = ("in memory", "accelerate disk_offload", "accelerate cpu_offload", "double buffer", "accelera")


def main(arguments: list[str]) -> dict[str, Any]:
    """Run, print and save the comparison."""
    options = _parse(arguments)
    figures: dict[str, Any] = {"layers": options.layers, "width": options.width, "budget": options.budget}
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        task = _task(Path(name), options, rows=1)
        write_model(task)
        figures["weights_bytes"] = task.path.stat().st_size
        figures["disk_s"] = _reading_s(task.path)
        figures["runs"] = [
            run for rows in options.rows for run in _round(_task(Path(name), options, rows), options)
        ]
    figures["gpt"] = _gpt(options)
    _print(figures)
    if options.save:
        print("saved", save(options.save, figures))
    return figures


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks offload")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64, 512])
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--budget", default="400MB")
    parser.add_argument("--cap", default="700MB", help="of the memory control group")
    parser.add_argument("--folder", default=".", help="where the files are written; a disk, not tmpfs")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda:0 where there is one")
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS))
    parser.add_argument("--save", help="name of the results file")
    parser.add_argument("--small", action="store_true", help="seconds instead of minutes")
    options = parser.parse_args(arguments)
    if options.small:
        options.layers, options.width, options.rows, options.passes = 4, 256, [2], 3
        options.budget, options.contenders = "64MB", ["double buffer", "accelera"]
    if options.contenders is None:
        options.contenders = ON_CPU if options.device == "cpu" else ON_GPU
    return options


def _task(folder: Path, options: argparse.Namespace, rows: int) -> Task:
    budget = parse_bytes(options.budget)
    return Task(folder, options.layers, options.width, rows, options.passes, budget, options.device)


def _round(task: Task, options: argparse.Namespace) -> list[dict[str, Any]]:
    runs = [_checked(name, task, alone(_command(name, task)), capped=False) for name in options.contenders]
    if options.device == "cpu" and not options.small:
        for name in options.contenders:
            drop_cache(path for path in task.folder.rglob("*") if path.is_file())
            done = capped(_command(name, task), parse_bytes(options.cap))
            if done is not None:
                runs.append(_checked(name, task, done, capped=True))
    return runs


def _command(name: str, task: Task) -> list[str]:
    numbers = [task.layers, task.width, task.rows, task.passes, task.budget]
    return [
        sys.executable,
        "-m",
        "benchmarks.offload_contenders",
        name,
        str(task.folder),
        *map(str, numbers),
        task.device,
    ]


def _checked(
    name: str, task: Task, done: subprocess.CompletedProcess[str], *, capped: bool
) -> dict[str, Any]:
    run = {**told(done), "contender": name, "rows": task.rows, "capped": capped}
    if "failed" in run:
        print(f"{name:26}{task.rows:5} rows  {run['failed']}", flush=True)
        return run
    run["best_s"] = min(run["seconds"][1:] or run["seconds"])
    run["keeps_budget"] = run["private_growth_bytes"] <= task.budget
    print(_line(run), f"  first {run['seconds'][0]:.3f} s", flush=True)
    return run


def _line(run: dict[str, Any]) -> str:
    where = "capped" if run["capped"] else "      "
    peak = format_bytes(run["peak_bytes"])
    grown = format_bytes(run["private_growth_bytes"])
    figures = f"{run['best_s']:9.3f} s  peak {peak}, private memory grew by {grown}"
    return f"{run['contender']:26}{run['rows']:5} rows {where}{figures}"


def _reading_s(path: Path) -> float:
    """Return the seconds of reading the whole file past the page cache, piece by piece."""
    size = path.stat().st_size // 4096 * 4096
    placement = Placement.dense((size,), np.dtype(np.uint8))
    store = FlatFile(path, os.open(path, os.O_RDONLY), placement, direct=True)
    piece = np.empty(min(16 << 20, size), np.uint8)
    began = time.perf_counter()
    for start in range(0, size, len(piece)):
        stop = min(size, start + len(piece))
        store.read((slice(start, stop),), piece[: stop - start])
    store.close()
    return time.perf_counter() - began


def _gpt(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Generate and train with and without offloading, each in a process of its own."""
    runs = []
    for how in ("in memory", "accelera"):
        small = ["--small"] if options.small else []
        done = alone([sys.executable, "-m", "benchmarks.offload_gpt", how, options.device, *small])
        runs.append({"contender": how, **told(done)})
        print("gpt", runs[-1], flush=True)
    return runs


def _print(figures: dict[str, Any]) -> None:
    disk_s = figures["disk_s"]
    print(f"\n{format_bytes(figures['weights_bytes'])} of weights, read once in {disk_s:.2f} s")
    for run in figures["runs"]:
        if "best_s" in run:
            floor = max(disk_s, _in_memory_s(figures["runs"], run["rows"]))
            print(_line(run), f"  {run['best_s'] / floor:.2f} of the floor {floor:.3f} s")


def _in_memory_s(runs: list[dict[str, Any]], rows: int) -> float:
    timed = [run for run in runs if run["contender"] == "in memory" and "best_s" in run]
    found = [run["best_s"] for run in timed if run["rows"] == rows]
    return min(found, default=0.0)


if __name__ == "__main__":
    main(sys.argv[1:])
