"""Memory that batches and streams take beside their tasks and outputs.

    python -m benchmarks bookkeeping
    python -m benchmarks bookkeeping --cases stream

Every figure is of a process of its own, whose tasks come from a range and whose outputs are None. Batches are
counted twice: what Python allocates, as ``tracemalloc`` has it, and the high-water mark of resident memory,
which knows of everything but goes in pages. A stream is taken as it comes.
"""

from __future__ import annotations

import functools
import gc
import json
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

from accelera.execution import (
    ExecutionStrategy,
    ProcessesExecutor,
    SimulatedExecutor,
    StrategyManager,
    ThreadsExecutor,
)
from accelera.memory import process_memory, reset_peak
from benchmarks import cases
from benchmarks.goals import Goal, judged

TASK_BYTES = 32
WINDOW = 1024
WINDOW_BYTES = 4 << 20
"""What resident memory may grow by in a stream of any length: the window, and what its threads take."""

WAYS = ("threads", "default", "processes", "gpu", "hybrid", "hybrid, freely")


def main(arguments: list[str]) -> dict[str, Any]:
    """Print and save bytes for each task."""
    options = cases.parser("bookkeeping", ("batch", "stream")).parse_args(arguments)
    ways = WAYS[:1] if options.small else WAYS
    batches = (20_000,) if options.small else (100_000, 1_000_000, 3_000_000)
    streams = (10_000,) if options.small else (100_000, 1_000_000, 10_000_000)
    return cases.run(
        options,
        {"batch": functools.partial(_batches, ways, batches), "stream": functools.partial(_streams, streams)},
    )


def _batches(ways: Sequence[str], counts: Sequence[int]) -> dict[str, Any]:
    figures, goals = {}, []
    for way in ways:
        for count in counts:
            found = {kind: _run_in_process(kind, way, count) / count for kind in ("allocated", "resident")}
            print(
                f"{way:16}{count:10} tasks" + "".join(f"{v:9.2f} B {k}" for k, v in found.items()), flush=True
            )
            figures[f"{way}, {count}"] = found
        goals += [
            Goal("G12", f"{way}: bytes a task, {kind}, of {count}", found[kind], TASK_BYTES) for kind in found
        ]
    return {"bytes_a_task": figures, "goals": judged(goals)}


def _streams(counts: Sequence[int]) -> dict[str, Any]:
    figures, goals = {}, []
    for way in ("ordered", "as they come"):
        for count in counts:
            began = time.perf_counter()
            figures[f"{way}, {count}"] = grown = _run_in_process("stream", way, count)
            seconds = time.perf_counter() - began
            print(f"{way:16}{count:10} tasks{grown / 1024:10.0f} KiB resident, {seconds:.1f} s", flush=True)
        goals.append(
            Goal("G12", f"stream of {count}, {way}: resident MiB", grown / 2**20, WINDOW_BYTES / 2**20)
        )
    return {"resident_bytes": figures, "goals": judged(goals)}


def _run_in_process(kind: str, way: str, count: int) -> float:
    command = [sys.executable, "-m", "benchmarks.bench_bookkeeping", kind, way, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def nothing(_task: int) -> None:
    """Return what takes no memory."""


def dawdling(_task: int) -> None:
    """Do so slowly: every thread gets some, and has what it needs from then on."""
    time.sleep(1e-4)


def measured(kind: str, way: str, count: int) -> int:
    """Return the bytes that ``count`` tasks take in this process, the list of their outputs aside."""
    if kind == "stream":
        _streamed(way, range(5000))
        return _resident(lambda tasks: _streamed(way, tasks), count)
    manager = _manager(way)
    manager.execute(range(200), dawdling)
    options: dict[str, Any] = {"rerun": "freely"} if way.endswith("freely") else {}

    def run(tasks: range) -> int:
        return sys.getsizeof(manager.execute(tasks, nothing, **options).outputs)

    return (_allocated if kind == "allocated" else _resident)(run, count)


def _allocated(run: Callable[[range], int], count: int) -> int:
    gc.collect()
    tracemalloc.start()
    outputs = run(range(count))
    return tracemalloc.get_traced_memory()[1] - outputs


def _resident(run: Callable[[range], int], count: int) -> int:
    gc.collect()
    reset_peak()
    before = process_memory().rss_bytes
    outputs = run(range(count))
    return max(0, process_memory().peak_bytes - before - outputs)


def _streamed(way: str, tasks: range) -> int:
    stream = StrategyManager(ThreadsExecutor(2)).stream(
        iter(tasks), nothing, ordered=way == "ordered", window=WINDOW
    )
    assert sum(1 for _ in stream) == len(tasks)
    return 0


def _manager(way: str) -> StrategyManager:
    if way == "default":
        return StrategyManager()
    if way == "processes":
        return StrategyManager(ProcessesExecutor(2))
    gpu = SimulatedExecutor("1GiB", memory_per_task="256KiB")
    strategies = {"threads": ExecutionStrategy.CpuOnly, "gpu": ExecutionStrategy.GpuOnly}
    strategy = strategies.get(way, ExecutionStrategy.Hybrid())
    return StrategyManager(ThreadsExecutor(2), gpu, strategy, learn=False)


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] in ("allocated", "resident", "stream"):
        print(json.dumps(measured(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
    else:
        main(sys.argv[1:])
