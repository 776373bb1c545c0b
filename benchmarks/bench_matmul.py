"""Two f32 matrix files multiplied inside a budget, beside everybody else doing the same.

Each contender runs in a process of its own on the same files, in turn, ``--rounds`` times over; the
best round counts and all are kept. ``accelera`` also runs in a process that is killed above its
budget, and with the page cache dropped or bypassed.

    python -m benchmarks matmul                      16384 x 16384, 512 MiB
    python -m benchmarks matmul --edge 8192 --budget 128MiB --rounds 1
    python -m benchmarks matmul --device cuda:0      in 512 MiB of a GPU's memory, beside cuBLAS on all of it
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from accelera import format_bytes, parse_bytes
from benchmarks.cap import alone, capped, drop_cache, told
from benchmarks.contenders import CONTENDERS
from benchmarks.machine import save

ON_GPU = ("accelera", "torch-resident", "torch-whole-job")
ON_CPU = tuple(name for name in CONTENDERS if name not in ON_GPU[1:])
IDLE_BYTES = 96 << 20
"""What the idle interpreter with NumPy and SciPy holds, allowed on top of the budget under a cap."""


def main(arguments: list[str]) -> dict[str, Any]:
    """Run, print and save the comparison."""
    options = _parse(arguments)
    budget = parse_bytes(options.budget)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        _write_operands(folder, options.edge)
        rounds = [
            _run(contender, folder, options, budget)
            for _ in range(options.rounds)
            for contender in options.contenders
        ]
        if options.device == "cpu":
            rounds += _special_runs(folder, options, budget)
    figures = {
        "edge": options.edge,
        "device": options.device,
        "budget_bytes": budget,
        "runs": rounds,
        "best": _best(rounds),
    }
    _print(figures)
    if options.save:
        print("saved", save(options.save, figures))
    return figures


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks matmul")
    parser.add_argument("--edge", type=int, default=16384)
    parser.add_argument("--budget", default="512MiB")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder", default=".", help="where the files are written; a disk, not tmpfs")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda:0 where there is one")
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS))
    parser.add_argument("--save", help="name of the results file")
    parser.add_argument("--small", action="store_true", help="seconds instead of minutes")
    options = parser.parse_args(arguments)
    if options.small:
        options.edge, options.budget, options.rounds = 768, "40MiB", 1
        options.contenders = options.contenders or ["accelera", "numpy-in-core", "numpy-memmap"]
    if options.contenders is None:
        options.contenders = ON_GPU if options.device != "cpu" else ON_CPU
    return options


def _write_operands(folder: Path, edge: int) -> None:
    rng = np.random.default_rng(0)
    for name in ("A.npy", "B.npy"):
        out = np.lib.format.open_memmap(folder / name, "w+", np.float32, (edge, edge))
        for start in range(0, edge, 1024):
            out[start : start + 1024] = rng.standard_normal((min(1024, edge - start), edge), np.float32)
        out.flush()


def _command(contender: str, folder: Path, options: argparse.Namespace, budget: int) -> list[str]:
    module = [sys.executable, "-m", "benchmarks.contenders"]
    return [*module, contender, str(folder), str(options.edge), str(budget), options.device]


def _run(contender: str, folder: Path, options: argparse.Namespace, budget: int) -> dict[str, Any]:
    return _checked(contender, alone(_command(contender, folder, options, budget)), folder)


def _checked(contender: str, done: subprocess.CompletedProcess[str], folder: Path) -> dict[str, Any]:
    figures = told(done)
    if "failed" in figures:
        print(f"{contender:36}{figures['failed']}", flush=True)
        return {"contender": contender, **figures}
    figures["largest_error"] = _largest_error(folder)
    print(_line(figures), flush=True)
    return figures


def _largest_error(folder: Path) -> float:
    """Compare entries of the first rows with float64."""
    a, b, c = (np.load(folder / name, mmap_mode="r") for name in ("A.npy", "B.npy", "C.npy"))
    columns = np.random.default_rng(1).integers(0, b.shape[1], 16)
    exact = a[:16].astype(np.float64) @ np.ascontiguousarray(b[:, columns]).astype(np.float64)
    return float(np.abs(c[:16][:, columns] - exact).max())


def _special_runs(folder: Path, options: argparse.Namespace, budget: int) -> list[dict[str, Any]]:
    runs = []
    drop_cache([folder / "A.npy", folder / "B.npy"])
    runs.append({**_run("accelera", folder, options, budget), "contender": "accelera, cold page cache"})
    done = capped(_command("accelera", folder, options, budget), budget + IDLE_BYTES)
    if done is not None:
        name = "accelera, killed above its budget"
        runs.append({**_checked(name, done, folder), "contender": name, "cap_bytes": budget + IDLE_BYTES})
    return runs


def _best(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    seconds: dict[str, float] = {}
    for each in rounds:
        if "seconds" in each:
            name = each["contender"]
            seconds[name] = min(each["seconds"], seconds.get(name, float("inf")))
    own = seconds.get("accelera")
    return {
        name: {"seconds": value, "speed_of_accelera": value / own if own else None}
        for name, value in seconds.items()
    }


def _line(run: dict[str, Any]) -> str:
    peak, there = format_bytes(run["peak_bytes"]), run["device_peak_bytes"]
    device = f", {format_bytes(there)} on the device" if there else ""
    return f"{run['contender']:36}{run['seconds']:9.2f} s{run['gflops']:9.1f} GFLOP/s  peak {peak}{device}"


def _print(figures: dict[str, Any]) -> None:
    print(f"\nbest of each, {figures['edge']} cubed, budget {format_bytes(figures['budget_bytes'])}")
    for name, best in figures["best"].items():
        print(
            f"{name:36}{best['seconds']:9.2f} s   accelera runs at {best['speed_of_accelera'] or 0:.3f} of it"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
