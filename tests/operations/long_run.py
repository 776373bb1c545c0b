"""Run as a program: an operation of very many tiny steps on numbers nobody stores; prints what it took."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import numpy as np

from accelera.devices import get_device
from accelera.engine import lazy
from accelera.memory import process_memory, reset_peak
from accelera.plan._internal import SavedPlan
from accelera.stores import Store, open_store
from accelera.stores._internal import Layout, Region
from tests.planned import evaluate, matmul

WIDTH = 16


class Counting(Store):
    """An array whose elements are their row numbers, made when they are read."""

    def __init__(self, rows: int) -> None:
        self.shape, self.dtype = (rows, WIDTH), np.dtype(np.float32)
        self.tier, self.name = "disk", "counting"

    def read(self, region: Region, out: np.ndarray[Any, Any]) -> int:
        out[...] = np.arange(region[0].start, region[0].stop, dtype=np.float32)[:, None]
        return out.nbytes

    def write(self, region: Region, data: np.ndarray[Any, Any]) -> int:
        return data.nbytes

    @property
    def layout(self) -> Layout:
        return Layout((0, 1), 4, None, True, (4 * WIDTH, 4))


def product(rows: int, spec: dict[str, Any] | None) -> Any:
    """Multiply into a store that forgets what is written."""
    pinned = None if spec is None else _pinned("matmul", rows, spec, B=[WIDTH, WIDTH])
    b = open_store(np.ones((WIDTH, WIDTH), np.float32))
    return matmul(
        Counting(rows), b, Counting(rows), device=get_device("cpu"), budget_bytes=BUDGET, pinned=pinned
    )


def total(rows: int, spec: dict[str, Any] | None) -> Any:
    """Add all up."""
    pinned = None if spec is None else _pinned("sum", rows, spec)
    found, report = evaluate(
        lazy(Counting(rows)).sum(axis=0),
        device=get_device("cpu"),
        budget_bytes=BUDGET,
        operation="sum",
        pinned=pinned,
    )
    np.testing.assert_allclose(found.to_numpy(), rows * (rows - 1) / 2, rtol=1e-6)
    return found, report


def _pinned(operation: str, rows: int, spec: dict[str, Any], **more: list[int]) -> SavedPlan:
    operands = {name: [shape, "float32"] for name, shape in {"A": [rows, WIDTH], **more}.items()}
    return SavedPlan(operation, operands, None, spec)


OPERATIONS = {"product": product, "total": total}
BUDGET = 40 << 20


def small_steps(name: str, rows: int, steps: int) -> dict[str, Any]:
    """Return the choices of a plan that has so many steps."""
    spec = dict(OPERATIONS[name](rows // steps * 3, None)[1].plan.spec)
    if name == "total":
        return {**spec, "tile": [rows // steps, WIDTH], "pass_steps": 600}
    strip = rows // steps
    parts = {"bands": [[steps, 1]], "by_rows": True, "shares": [], "strip": strip, "swap": False}
    return {**spec, **parts, "pass_steps": 600}


def main(name: str, steps: int) -> dict[str, Any]:
    rows = 64 * steps
    spec = small_steps(name, rows, steps)
    OPERATIONS[name](64 * 50, small_steps(name, 64 * 50, 50))
    before = process_memory().rss_bytes
    reset_peak()
    report = replace(OPERATIONS[name](rows, spec)[1])
    return {
        "peak": process_memory().peak_bytes - before,
        "projected": report.plan.peak_bytes["ram"],
        "steps": report.steps_run,
        "passes": report.plan.forecast.passes,
        "as_planned": report.hits == report.plan.forecast.hits
        and report.misses == report.plan.forecast.misses,
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]))))
