"""Run as a program: a product on CPU and a simulated accelerator; prints what it took of RAM as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from accelera.devices import SimulatedDevice
from accelera.engine import MatrixEngine
from accelera.execution import ExecutionStrategy
from accelera.memory import process_memory, reset_peak


def main(budget_bytes: int) -> dict[str, Any]:
    warm_up()
    device = SimulatedDevice("24MiB")
    halves = ExecutionStrategy.Hybrid(50, 50)
    engine = MatrixEngine(device=device, strategy=halves, enable_progress=False, budget=budget_bytes)
    engine.plan("a.npy", "b.npy", out="c.npy")
    before = process_memory().rss_bytes
    reset_peak()
    engine.matmul("a.npy", "b.npy", out="c.npy")
    took = process_memory().peak_bytes - before
    report = engine.last_report
    assert report is not None
    return {
        "took": took,
        "on_device": device.report().peak_bytes,
        "planned": report.plan.peak_bytes,
        "blocks": {name: did.blocks for name, did in report.per_device.items()},
    }


def warm_up() -> None:
    """Load what a product imports, and start the libraries' threads, on operands of a few bytes."""
    small = np.ones((64, 64), "f4")
    MatrixEngine(device="sim", strategy="hybrid", enable_progress=False).matmul(small, small)


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]))))
