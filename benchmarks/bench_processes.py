"""Worker processes: pure Python and tiny tasks beside the executors that people use, and what a death costs.

Contenders take turns, round after round, and the best round of each counts. ``ProcessPoolExecutor`` is tuned
by hand for tiny tasks: the best of several chunk sizes is what ours is compared with.

    python -m benchmarks processes
    python -m benchmarks processes --cases python
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from accelera.execution import AutoCpuExecutor, ProcessesExecutor, StrategyManager
from benchmarks import cases
from benchmarks.executor_contenders import CONTENDERS, WORKERS, Map, absent, processes
from benchmarks.executor_tasks import counting, doubled, tiny
from benchmarks.goals import Goal, judged

CHUNK_SIZES = (64, 250, 1000, 2500, 5000)
PEERS = ("ProcessPoolExecutor, forked", "ProcessPoolExecutor", "loky", "joblib")


def main(arguments: list[str]) -> dict[str, Any]:
    """Run, print and save all figures."""
    options = cases.parser("processes", ("python", "tiny", "arrays", "start", "death")).parse_args(arguments)
    missing = [name for name in PEERS if absent(name)]
    if missing:
        print("not installed, left out:", ", ".join(missing))
    return cases.run(
        options,
        {
            "python": lambda: _python(small=options.small),
            "tiny": lambda: _tiny(small=options.small),
            "arrays": lambda: {"seconds": _arrays(small=options.small)},
            "start": lambda: _printed_seconds(_start_s()),
            "death": lambda: _printed_seconds(_death_s()),
        },
    )


def _printed_seconds(seconds: float) -> dict[str, Any]:
    print(f"{seconds:.3f} s")
    return {"seconds": seconds}


def _python(*, small: bool) -> dict[str, Any]:
    """Measure 200 Python loops of 12 ms: warm against peers, a first batch against a serial loop."""
    tasks = [2_000] * 10 if small else [350_000] * 200
    names = (PEERS[0], "serial loop", "accelera", "accelera processes", *PEERS[1:])
    seconds = _best_of_rounds(_available(names), counting, tasks, 1 if small else 5)
    cold = []
    for _ in range(1 if small else 3):
        with AutoCpuExecutor(WORKERS) as executor:
            manager = StrategyManager.cpu_only(executor)
            cold.append(_seconds(functools.partial(manager.execute, tasks, counting)))
    seconds["accelera, first batch"] = min(cold)
    ours, best = seconds["accelera"], min(seconds[name] for name in PEERS if name in seconds)
    serial = seconds["serial loop"]
    goals = (
        Goal(
            "G5", "200 loops of Python: accelera, warm / best of processes, loky, joblib", ours / best, 1.10
        ),
        Goal("G5", "200 loops of Python: accelera, warm / serial loop", ours / serial, 1.05),
        Goal("G5", "200 loops of Python: accelera, first batch / serial loop", min(cold) / serial, 1.05),
    )
    return {"seconds": seconds, "goals": judged(goals)}


def _tiny(*, small: bool) -> dict[str, Any]:
    """Measure 10,000 additions, whose only cost is to be sent to the workers."""
    tasks = range(500 if small else 10_000)
    openers = _available(("accelera processes", "loky"))
    for size in CHUNK_SIZES[:1] if small else CHUNK_SIZES:
        openers[f"ProcessPoolExecutor, chunksize {size}"] = functools.partial(processes, size)
    seconds = _best_of_rounds(openers, tiny, tasks, 2 if small else 7)
    ours = seconds["accelera processes"]
    tuned = min(value for name, value in seconds.items() if "chunksize" in name)
    goals = [Goal("G6", "10,000 tiny tasks: processes / ProcessPoolExecutor, best chunk", ours / tuned, 1.2)]
    if "loky" in seconds:
        goals.append(Goal("G6", "10,000 tiny tasks: processes / loky", ours / seconds["loky"], 0.05))
    return {"seconds": seconds, "goals": judged(goals)}


def _arrays(*, small: bool) -> dict[str, float]:
    """Return the seconds that an array of 4 MiB takes there and back."""
    tasks = [np.ones(1 << 19) for _ in range(4 if small else 40)]
    seconds = _best_of_rounds(_available((*PEERS, "accelera processes")), doubled, tasks, 1 if small else 3)
    return {name: value / len(tasks) for name, value in seconds.items()}


def _start_s() -> float:
    """Return the seconds from nothing to the output of a first batch."""

    def run() -> None:
        with ProcessesExecutor(WORKERS) as executor:
            executor.execute_batch(range(WORKERS), tiny)

    return min(_seconds(run) for _ in range(3))


def _death_s() -> float:
    """Return the seconds that a batch takes longer when a worker is killed in the middle of it."""
    with ProcessesExecutor(WORKERS) as executor, tempfile.TemporaryDirectory() as folder:
        executor.execute_batch(range(WORKERS), tiny)
        with_death, without = [], []
        for attempt in range(3):
            marker = Path(folder) / str(attempt)
            without.append(_seconds(lambda: executor.execute_batch(range(40), _napping)))
            dying = functools.partial(_dying, marker)
            with_death.append(_seconds(functools.partial(executor.execute_batch, range(40), dying)))
    return min(with_death) - min(without)


def _napping(task: int) -> int:
    time.sleep(0.01)
    return task


def _dying(marker: Path, task: int) -> int:
    if task == 20 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return _napping(task)


def _available(names: Sequence[str]) -> dict[str, Callable[[], contextlib.AbstractContextManager[Map]]]:
    return {name: CONTENDERS[name] for name in names if not absent(name)}


def _best_of_rounds(
    openers: dict[str, Callable[[], contextlib.AbstractContextManager[Map]]],
    function: Callable[[Any], Any],
    tasks: Sequence[Any],
    rounds: int,
) -> dict[str, float]:
    """Return the best seconds of each contender, after one round that does not count."""
    with contextlib.ExitStack() as stack:
        maps = {name: stack.enter_context(opener()) for name, opener in openers.items()}
        expected = [repr(output) for output in map(function, tasks[:3])]
        for run in maps.values():
            assert [repr(output) for output in run(function, tasks)[:3]] == expected
        best = dict.fromkeys(maps, float("inf"))
        for _ in range(rounds):
            for name, run in maps.items():
                best[name] = min(best[name], _seconds(functools.partial(run, function, tasks)))
    for name, seconds in best.items():
        print(f"{name:40}{1e3 * seconds:12.3f} ms", flush=True)
    return best


def _seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


if __name__ == "__main__":
    main(sys.argv[1:])
