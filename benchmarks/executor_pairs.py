"""Two executors in turn, from the first batch of a process: ratios that hold while others use the machine.

    python -m benchmarks.executor_pairs auto 9

prints, as JSON, the seconds and the processor seconds that each of nine batches took. They take turns in
beginning; who begins first depends on whether the number is even.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from accelera.execution import StrategyManager, ThreadsExecutor
from benchmarks.executor_contenders import WORKERS
from benchmarks.executor_tasks import images, resized
from benchmarks.goals import Goal, judged

POOL = "ThreadPoolExecutor"
ROUNDS = (8, 9) * 3 + (1, 2) * 4
"""Of each process; whoever begins in it, which alternates, has its memory to fetch."""


class Batch(NamedTuple):
    """Times of one batch."""

    seconds: float
    processor_s: float


def main(arguments: list[str]) -> None:
    """Run batches of two contenders in turn and print what each took."""
    ours, rounds, small = arguments[0], int(arguments[1]), arguments[2:] == ["small"]
    tasks = images(4 if small else 100, 64 if small else 256)
    pool = ThreadPoolExecutor(WORKERS)
    cpu = ThreadsExecutor(WORKERS) if ours == "threads" else None
    manager = StrategyManager.cpu_only(cpu)
    runs: dict[str, Callable[[], Any]] = {
        ours: lambda: manager.execute(tasks, resized),
        POOL: lambda: list(pool.map(resized, tasks)),
    }
    batches: dict[str, list[Batch]] = {name: [] for name in runs}
    for number in range(rounds):
        for name in sorted(runs, reverse=bool((number + rounds) % 2)):
            batches[name].append(_batch(runs[name]))
    print(json.dumps(batches))


def _batch(run: Callable[[], Any]) -> Batch:
    began, began_busy = time.perf_counter(), time.process_time()
    run()
    return Batch(round(time.perf_counter() - began, 4), round(time.process_time() - began_busy, 4))


def figures(*, small: bool) -> dict[str, Any]:
    """Return both our executors' ratios to ``ThreadPoolExecutor.map``, of first and later batches."""
    found: dict[str, Any] = {}
    goals: list[Goal] = []
    for ours in ("threads", "auto"):
        batches = [_run_in_process(ours, rounds, small) for rounds in ((2, 3) if small else ROUNDS)]
        ratios = _ratios(batches, ours)
        found[ours] = {"ratio": ratios, "batches": batches}
        what = f"100 resizes: accelera {ours} / {POOL}"
        goals += [
            Goal("G4", what, ratios["later"], 1.02),
            Goal("G4", f"{what}, first batch", ratios["first"], 1.05),
            Goal("G4", f"{what}, processor seconds", ratios["later_processor"], 1.02),
        ]
    return found | {"goals": judged(goals)}


def _run_in_process(ours: str, rounds: int, small: bool) -> dict[str, list[list[float]]]:
    command = [sys.executable, "-m", "benchmarks.executor_pairs", ours, str(rounds), *["small"] * small]
    root = Path(__file__).parents[1]
    output = subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE, text=True).stdout
    batches: dict[str, list[list[float]]] = json.loads(output)
    return batches


def _ratios(batches: list[dict[str, list[list[float]]]], ours: str) -> dict[str, float]:
    """Return medians of ours / theirs, each of two batches that ran one after the other."""
    found = {}
    for name, which in (("", 0), ("_processor", 1)):
        pairs = [
            [mine[which] / other[which] for mine, other in zip(each[ours], each[POOL], strict=True)]
            for each in batches
        ]
        found[f"first{name}"] = statistics.median(ratios[0] for ratios in pairs)
        found[f"later{name}"] = statistics.median(ratio for ratios in pairs for ratio in ratios[1:])
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
