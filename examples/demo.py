"""Two matrix files multiplied inside a budget a fraction of their size, and held to the plan.

    python examples/demo.py [--size N] [--budget SIZE]

Writes A.npy and B.npy into a temporary folder, prints the plan, computes C.npy, compares sampled
entries with float64, and shows what was predicted beside what was measured. The folder is removed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import accelera
from accelera.memory import process_memory, reset_peak

SMALL = os.environ.get("ACCELERA_EXAMPLE_SMALL") == "1"
BLOCK_ROWS = 256


def write_matrix(path: Path, size: int, seed: int) -> None:
    """Write a random ``size`` x ``size`` float32 matrix, some rows at a time."""
    random = np.random.default_rng(seed)
    with path.open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (size, size)}
        np.lib.format.write_array_header_1_0(file, header)
        for first in range(0, size, BLOCK_ROWS):
            rows = min(BLOCK_ROWS, size - first)
            file.write(random.standard_normal((rows, size), dtype=np.float32).data)


def largest_error(folder: Path, size: int, samples: int = 48) -> float:
    """Return the largest error of sampled entries in units of one rounding of the sum of magnitudes."""
    random = np.random.default_rng(7)
    rows, columns = (np.sort(random.choice(size, min(samples, size), replace=False)) for _ in range(2))
    a, b, c = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in "ABC")
    left, right = a[rows].astype(np.float64), b[:, columns].astype(np.float64)
    one_rounding = np.finfo(np.float32).eps * (np.abs(left) @ np.abs(right))
    return float(np.max(np.abs(c[np.ix_(rows, columns)] - left @ right) / one_rounding))


def multiply(folder: Path, budget: str) -> tuple[accelera.Plan, Any, int]:
    """Print the plan, run it, and return it with the report and the peak above the idle process."""
    engine = accelera.MatrixEngine("cpu")
    a, b, c = (folder / f"{name}.npy" for name in "ABC")
    plan = engine.plan(a, b, out=c, budget=budget)
    print(plan.explain(), "\n", flush=True)
    reset_peak()
    idle_bytes = process_memory().rss_bytes
    engine.matmul(a, b, out=c, budget=budget)
    return plan, engine.last_report, process_memory().peak_bytes - idle_bytes


def show(plan: accelera.Plan, report: Any, peak_bytes: int) -> None:
    """Print predicted and measured figures side by side."""
    size = accelera.format_bytes
    rows = [
        ("peak memory of the process", size(plan.peak_bytes["ram"]), size(peak_bytes)),
        ("peak of the blocks", size(plan.forecast.peak_pool_bytes), size(report.peak_pool_bytes)),
        ("bytes read", f"{sum(plan.forecast.bytes_read.values()):,}", f"{sum(report.bytes_read.values()):,}"),
        ("bytes written", f"{plan.forecast.bytes_written:,}", f"{report.bytes_written:,}"),
        ("seconds", f"{plan.forecast.seconds:.1f}", f"{report.seconds:.1f}"),
    ]
    print(f"{'':28}{'predicted':>16}{'measured':>16}")
    for name, predicted, measured in rows:
        print(f"{name:28}{predicted:>16}{measured:>16}")


def workplace(needed_bytes: int) -> str | None:
    """Return the folder for temporary files: the system's, or this one if that has no room."""
    roomy = shutil.disk_usage(tempfile.gettempdir()).free > 1.2 * needed_bytes
    return None if roomy else str(Path.cwd())


def main() -> int:
    """Run the demonstration; return 0 when everything held."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", type=int, default=1024 if SMALL else 8192, help="rows and columns")
    parser.add_argument("--budget", default="40MiB" if SMALL else "128MiB", help="memory to take")
    given = parser.parse_args()
    if given.size < 1:
        parser.error("--size must be at least 1")
    file_bytes = 4 * given.size**2
    with tempfile.TemporaryDirectory(prefix="accelera-demo-", dir=workplace(3 * file_bytes)) as name:
        folder = Path(name)
        began = time.perf_counter()
        for seed, letter in enumerate("AB"):
            write_matrix(folder / f"{letter}.npy", given.size, seed)
        written = f"A.npy and B.npy, {accelera.format_bytes(file_bytes)} each"
        print(f"{written}, written in {time.perf_counter() - began:.1f} s; the budget is {given.budget}\n")
        plan, report, peak_bytes = multiply(folder, given.budget)
        show(plan, report, peak_bytes)
        error = largest_error(folder, given.size)
    budget_bytes = accelera.parse_bytes(given.budget)
    right, held = error < 4, peak_bytes <= budget_bytes
    print(f"\nsampled entries agree with float64 to {error:.2f} of one rounding of the sum of magnitudes")
    print("the budget was kept" if held else "THE BUDGET WAS EXCEEDED")
    print("\nWill your model fit? `make ui` answers in a browser (elsewhere: accelera serve --ui)")
    return 0 if right and held else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except accelera.AcceleraError as error:
        sys.exit(f"demo: {error}")
