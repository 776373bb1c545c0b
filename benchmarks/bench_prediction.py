"""How long runs wait for data: what the simulator says beside what was measured, out of core.

Each case is run and recorded. Its record, with the seconds that each step's arithmetic took, is replayed in
two tiers whose link is as fast as a probe finds: blocks of the same shapes read, and written, one by one.
What threads take to hand a step on is probed too, by a product that need not wait for data.
Stores of a given speed wait so long per byte; the last cases read and write files past the page cache.

python -m benchmarks prediction
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from accelera.devices import get_device
from accelera.engine import RunReport, lazy
from accelera.engine.evaluate import evaluate
from accelera.engine.job import carry_out
from accelera.engine.matmul import PlannedMatmul
from accelera.engine.options import OperationOptions
from accelera.errors import BudgetExceededError
from accelera.memory import Hierarchy, Tier
from accelera.memory._internal import UNBOUNDED_BYTES
from accelera.plan._internal import Eviction, Operand, OperandBlock
from accelera.simulator import Report, simulate
from accelera.stores import Store, open_store
from accelera.stores._internal import Layout, Region, create_store
from accelera.trace import TraceLog
from benchmarks.machine import save

Array = np.ndarray[Any, Any]
WANTED = 0.15
"""Largest error asked for, of the waiting and of the time in all."""
PROBED = 24
"""Blocks that a probe moves."""


class PacedStore(Store):
    """An array behind a link of a given speed: reads queue up, and so do writes."""

    tier = "disk"

    def __init__(self, array: Array, bytes_per_s: float, name: str) -> None:
        self.shape, self.dtype, self.name = array.shape, array.dtype, name
        self._base = open_store(array)
        self._seconds_per_byte = 1 / bytes_per_s
        self._reading, self._writing = _LINKS

    def read(self, region: Region, out: Array) -> int:
        """Read as fast as the link allows."""
        with self._reading:
            return self._paced(lambda: self._base.read(region, out))

    def write(self, region: Region, data: Array) -> int:
        """Write as fast as the link allows."""
        with self._writing:
            return self._paced(lambda: self._base.write(region, data))

    @property
    def layout(self) -> Layout:
        """The array's."""
        return self._base.layout

    def _paced(self, move: Callable[[], int]) -> int:
        began = time.perf_counter()
        moved = move()
        time.sleep(max(0.0, moved * self._seconds_per_byte - (time.perf_counter() - began)))
        return moved


_LINKS = threading.Lock(), threading.Lock()


class Case(NamedTuple):
    """One run to be predicted."""

    name: str
    bytes_per_s: float | None
    """Speed of the stores; None: files."""
    product: bool
    policy: str = "belady"
    prefetch: bool = True
    extra_mib: int = 24
    """Budget above the smallest."""


def cases(small: bool) -> list[Case]:
    """Return the cases: stores from much faster than the arithmetic to much slower, and files."""
    if small:
        return [Case("product, 0.5 GB/s", 5e8, True), Case("sum, 0.5 GB/s", 5e8, False)]
    speeds = [2e9, 5e8, 2e8, 1e8]
    products = [Case(f"product, {speed / 1e9:g} GB/s", speed, True) for speed in speeds]
    return [
        *products,
        Case("product, 0.2 GB/s, lru", 2e8, True, "lru"),
        Case("product, 0.2 GB/s, planner", 2e8, True, "planner"),
        Case("product, 0.2 GB/s, nothing ahead", 2e8, True, prefetch=False),
        Case("a * b + a, 0.5 GB/s", 5e8, False),
        Case("a * b + a, 0.2 GB/s, nothing ahead", 2e8, False, prefetch=False),
        Case("product of files", None, True),
        Case("a * b + a of files", None, False),
    ]


def main(arguments: list[str]) -> dict[str, Any]:
    """Print and save one line per case."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks prediction")
    parser.add_argument("--save")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--rounds", type=int, default=3, help="runs per case; the median error counts")
    parser.add_argument("--size", type=int, default=3072, help="edge of the matrices")
    parser.add_argument("--folder", help="where files are made")
    options = parser.parse_args(arguments)
    size, rounds = (384, 1) if options.small else (options.size, options.rounds)
    print(f"{'':38}{'waiting, predicted':>20}{'measured':>10}{'in all':>10}{'measured':>10}")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        rows = [_row(case, size, rounds, Path(folder)) for case in cases(options.small)]
    figures = {"size": size, "rounds": rounds, "rows": rows, "within": _within(rows)}
    print(figures["within"])
    if options.save:
        print("saved", save(options.save, figures))
    return figures


def _within(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "wanted": WANTED,
        "waiting": sum(row["waiting_error"] <= WANTED for row in rows),
        "in_all": sum(row["total_error"] <= WANTED for row in rows),
        "of": len(rows),
    }


def _row(case: Case, size: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Run a case several times; return the figures of the run with the median error in all."""
    found = sorted((_once(case, size, folder) for _ in range(rounds)), key=lambda row: row["total_error"])
    row = {**found[len(found) // 2], "case": case.name}
    row["waiting_error"] = statistics.median(each["waiting_error"] for each in found)
    print(
        f"{case.name:38}{row['predicted_stall_s']:18.3f} s{row['measured_stall_s']:8.3f} s"
        f"{row['predicted_s']:8.3f} s{row['measured_s']:8.3f} s"
        f"   errors {row['waiting_error']:.1%}, {row['total_error']:.1%}",
        flush=True,
    )
    return row


def _once(case: Case, size: int, folder: Path) -> dict[str, Any]:
    """Return predicted and measured seconds; the waiting's error counts against the time in all."""
    a, b, out = _stores(case, size, folder)
    log = TraceLog()
    report = _run(case, a, b, out, log)
    predicted = _predicted(case, report, log, (a, b, out))
    predicted_stall_s = predicted.total_s - report.compute_s
    measured_s = report.stall_s + report.compute_s
    return {
        "policy": case.policy,
        "predicted_stall_s": predicted_stall_s,
        "measured_stall_s": report.stall_s,
        "planned_stall_s": report.plan.forecast.stall_s,
        "predicted_s": predicted.total_s,
        "measured_s": measured_s,
        "waiting_error": _error(predicted_stall_s, report.stall_s, measured_s),
        "total_error": abs(predicted.total_s - measured_s) / measured_s,
        "moved_bytes": predicted.moved_bytes,
    }


def _error(predicted_s: float, measured_s: float, total_s: float) -> float:
    """Return the relative error; waiting of less than a tenth of the time counts as a tenth."""
    return abs(predicted_s - measured_s) / max(measured_s, total_s / 10)


def _stores(case: Case, size: int, folder: Path) -> tuple[Store, Store, Any]:
    shape = (size, size) if case.product else (4 * size, size)
    a, b = (np.random.default_rng(seed).random(shape, np.float32) for seed in (1, 2))
    if case.bytes_per_s is not None:
        out = np.empty(shape, np.float32)
        left, right, result = (
            PacedStore(array, case.bytes_per_s, name) for name, array in (("a", a), ("b", b), ("out", out))
        )
        return left, right, result
    for name, array in (("a", a), ("b", b)):
        np.save(folder / f"{name}.npy", array)
    stores = [open_store(folder / f"{name}.npy") for name in "ab"]
    for store in stores:
        store.use_direct(True)
    return stores[0], stores[1], folder / "out.npy"


def _run(case: Case, a: Store, b: Store, out: Any, log: TraceLog) -> RunReport:
    """Run a case in little more than the smallest budget that does."""

    def call(budget_bytes: int, recorder: TraceLog | None) -> RunReport:
        device = get_device("cpu")
        options = OperationOptions(
            budget_bytes,
            prefetch=case.prefetch,
            readers=1,
            eviction=Eviction(case.policy),
            recorder=recorder,
        )
        if case.product:
            return carry_out(PlannedMatmul(a, b, out, options).job(), device, options)[1]
        return evaluate(lazy(a) * lazy(b) + lazy(a), out, device=device, options=options)[1]

    try:
        return call(1, None)
    except BudgetExceededError as refusal:
        return call(refusal.needed_bytes + case.extra_mib * 2**20, log)


def _predicted(case: Case, report: RunReport, log: TraceLog, stores: tuple[Store, Store, Any]) -> Report:
    """Replay the record with the rates that a probe finds."""
    *inputs, result = stores
    read = _rate(
        [(store, operand) for store, operand in zip(inputs, report.plan.operands, strict=False)], report
    )
    write = case.bytes_per_s or _write_rate(report, Path(result))
    tiers = (
        Tier("ram", report.plan.capacity_bytes, float("inf")),
        Tier("stores", UNBOUNDED_BYTES, read, write_bandwidth_bytes_per_s=write),
    )
    trace = log.trace()
    handed_on = replace(trace, seconds=trace.seconds + _handing_on_s())
    return simulate(handed_on, Hierarchy(tiers), case.policy)


def _handing_on_s() -> float:
    """Return the seconds between the arithmetic of two steps where no data is waited for, the median of 3."""
    found = []
    for _ in range(3):
        case = Case("probe", float("inf"), True, extra_mib=1)
        report = _run(case, *_stores(case, 768, Path()), TraceLog())
        found.append(report.stall_s / report.steps_run)
    return statistics.median(found)


def _rate(stores: list[tuple[Store, Operand]], report: RunReport) -> float:
    """Return the bytes per second at which the plan's first blocks are read, one after the other."""
    moved, spent_s = 0, 0.0
    memory: dict[int, Array] = {}
    for operand, region in _blocks(report):
        store = stores[operand][0]
        shape = tuple(part.stop - part.start for part in region)
        nbytes = int(np.prod(shape)) * store.dtype.itemsize
        buffer = memory.setdefault(nbytes, np.zeros(nbytes // store.dtype.itemsize, store.dtype))
        began = time.perf_counter()
        moved += store.read(region, buffer.reshape(shape))
        spent_s += time.perf_counter() - began
    return moved / spent_s


def _blocks(report: RunReport) -> Iterator[tuple[int, Region]]:
    """Yield the distinct blocks that the first steps read."""
    seen: set[int] = set()
    for step in report.plan.steps():
        for block in step.reads:
            if block.id not in seen and len(seen) < PROBED:
                seen.add(block.id)
                yield block.operand, block.region


def _write_rate(report: RunReport, path: Path) -> float:
    """Return the bytes per second at which blocks of the result are written and made durable.

    As in a run, a line of a journal is made durable after each.
    """
    result = report.plan.operands[-1]
    store = create_store(path.with_name("probe.npy"), result.shape, result.dtype)
    moved, began = 0, time.perf_counter()
    with open(path.with_name("probe.journal"), "ab", buffering=0) as journal:
        for block in _written(report):
            moved += store.write(block.region, np.zeros(block.shape, result.dtype))
            store.flush()
            journal.write(b"block\n")
            os.fsync(journal.fileno())
    spent_s = time.perf_counter() - began
    store.abort()
    return moved / spent_s


def _written(report: RunReport) -> list[OperandBlock]:
    """Return the first blocks that are completed."""
    finished = (step.write for step in report.plan.steps() if step.last)
    return list(itertools.islice(finished, PROBED // 3))


if __name__ == "__main__":
    main(sys.argv[1:])
