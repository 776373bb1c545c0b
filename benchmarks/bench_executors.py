"""Batches of work on this machine's cores: StrategyManager beside the executors that people use.

Each contender is opened once for every case and they take turns of several rounds, twice; the best round
counts. Goals are about our time as a multiple of theirs. "resizes" has pairs of contenders in processes of
their own, from the first batch on.

    python -m benchmarks executors
    python -m benchmarks executors --cases one ten --contenders accelera ThreadPoolExecutor
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks import cases, executor_pairs
from benchmarks.executor_contenders import CONTENDERS, Map, absent
from benchmarks.executor_tasks import counting, doubled, product, tiny
from benchmarks.goals import Goal, judged

SMALL = ("serial loop", "accelera", "ThreadPoolExecutor", "ThreadPoolExecutor, 64 pieces")
UNCAPPED = "accelera, BLAS threads as they are"
"""Takes part where BLAS does the work."""


PASSES = 2
"""Every contender has its turn so often."""
MOST_S = 5.0
"""About the longest turn, and the longest first round of one that has another."""


class Case(NamedTuple):
    """Some tasks, and how many times as long as another we may take."""

    what: str
    function: Callable[[Any], Any]
    tasks: Sequence[Any]
    rounds: int
    goals: tuple[tuple[str, str, float], ...] = ()
    """Name of the goal, the other contender, and the bound."""


def main(arguments: list[str]) -> dict[str, Any]:
    """Run, print and save the comparison."""
    options = cases.parser("executors", [*_cases(small=True), "resizes"])
    options.add_argument("--contenders", nargs="+", choices=list(CONTENDERS))
    chosen = options.parse_args(arguments)
    found = _cases(small=chosen.small)
    runs = {name: functools.partial(_figures, case, _names(case, chosen)) for name, case in found.items()}
    return cases.run(
        chosen, runs | {"resizes": functools.partial(executor_pairs.figures, small=chosen.small)}
    )


def _names(case: Case, options: argparse.Namespace) -> Sequence[str]:
    if options.contenders is not None:
        return tuple(options.contenders)
    names = SMALL if options.small else [name for name in CONTENDERS if name != UNCAPPED]
    return (*names, UNCAPPED) if case.function is product else tuple(names)


def _cases(*, small: bool) -> dict[str, Case]:
    pool, pieces = "ThreadPoolExecutor", "ThreadPoolExecutor, 64 pieces"
    arrays = [np.ones(1 << 19) for _ in range(4 if small else 100)]
    count, edge = (10, 64) if small else (200, 576)
    return {
        "one": Case("one tiny task", tiny, [1], 5 if small else 200, (("G2", pool, 0.25),)),
        "ten": Case("ten tiny tasks", tiny, range(10), 5 if small else 200, (("G2", pool, 0.15),)),
        "tiny": Case(
            "10,000 tiny tasks",
            tiny,
            range(500 if small else 10_000),
            2 if small else 5,
            (("G3", pool, 0.05), ("G3", pieces, 1.5)),
        ),
        "products": Case(
            "200 products of NumPy",
            product,
            [edge] * count,
            1 if small else 5,
            (("G4", pool, 1.02), ("G4", UNCAPPED, 1.01)),
        ),
        "loops": Case(
            "200 loops of Python", counting, [2_000 if small else 350_000] * count, 1 if small else 5
        ),
        "arrays": Case("100 arrays of 4 MiB in and out", doubled, arrays, 1 if small else 3),
    }


def _figures(case: Case, names: Sequence[str]) -> dict[str, Any]:
    missing = [name for name in names if absent(name)]
    if missing:
        print("not installed, left out:", ", ".join(missing))
    with contextlib.ExitStack() as stack:
        maps = {name: stack.enter_context(CONTENDERS[name]()) for name in names if name not in missing}
        seconds = _run(case, maps)
    for name, each in sorted(seconds.items(), key=lambda item: item[1]):
        print(f"{case.what:34}{name:36}{1e3 * each:12.3f} ms", flush=True)
    goals = [
        Goal(goal, f"{case.what}: accelera / {other}", seconds["accelera"] / seconds[other], bound)
        for goal, other, bound in case.goals
        if "accelera" in seconds and other in seconds
    ]
    return {"absent": missing, "seconds": seconds, "goals": judged(goals)}


def _run(case: Case, maps: dict[str, Map]) -> dict[str, float]:
    """Return the best seconds of each; the first round is to warm up, and counts only if it is very long."""
    first = {name: _seconds(run, case) for name, run in maps.items()}
    best = {name: seconds for name, seconds in first.items() if seconds > MOST_S}
    for _ in range(PASSES):
        for name, run in maps.items():
            if first[name] > MOST_S:
                continue
            rounds = max(1, min(case.rounds, int(MOST_S / first[name])))
            seconds = min(_seconds(run, case) for _ in range(rounds))
            best[name] = min(seconds, best.get(name, seconds))
    return best


def _seconds(run: Map, case: Case) -> float:
    began = time.perf_counter()
    outputs = run(case.function, case.tasks)
    seconds = time.perf_counter() - began
    if len(outputs) != len(case.tasks):
        raise AssertionError(f"{len(outputs)} outputs of {len(case.tasks)} tasks")
    return seconds


if __name__ == "__main__":
    main(sys.argv[1:])
