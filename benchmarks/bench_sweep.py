"""Seconds for 20 policies at 50 capacities of three 7B training steps, and for one of these replays.

python -m benchmarks sweep
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

from accelera.policy import POLICIES
from accelera.simulator import simulate, sweep
from benchmarks.machine import save
from benchmarks.models import Reference, llama, small_references, tokens, traced

ITERATIONS = 3
POLICIES_TRIED = tuple(name for name in POLICIES if name != "learned")[:20]


def main(arguments: list[str]) -> dict[str, Any]:
    """Print and save the seconds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks sweep")
    parser.add_argument("--save")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args(arguments)
    whole = Reference(llama, lambda: tokens(1, 2048), "bfloat16")
    trace = traced(small_references()["llama"] if options.small else whole, ITERATIONS)
    capacities = 5 if options.small else 50
    began_s, processor_s = time.perf_counter(), time.process_time()
    found = sweep(trace, POLICIES_TRIED, capacities, progress=False)
    seconds, busy_s = time.perf_counter() - began_s, time.process_time() - processor_s
    began_s = time.perf_counter()
    bounds = found.lower_bounds
    bound_s = time.perf_counter() - began_s
    single = [_replay_s(trace, found.capacities[capacities // 2], policy) for policy in POLICIES_TRIED]
    figures = {
        "accesses": trace.access_count,
        "policies": len(POLICIES_TRIED),
        "capacities": len(found.capacities),
        "seconds": round(seconds, 3),
        "processor_seconds": round(busy_s, 3),
        "bound_seconds": round(bound_s, 3),
        "one_replay_ms": {
            "median": round(1e3 * statistics.median(single), 3),
            "slowest": round(1e3 * max(single), 3),
        },
        "best": found.best(),
        "knee_bytes": found.knee(),
        "least_moved_bytes": bounds[-1],
    }
    for name, value in figures.items():
        print(f"{name:>18} {value}")
    if options.save:
        print("saved", save(options.save, figures))
    return figures


def _replay_s(trace: Any, capacity: int, policy: str) -> float:
    """Return the best of five."""
    tries = []
    for _ in range(5):
        began_s = time.perf_counter()
        simulate(trace, capacity, policy)
        tries.append(time.perf_counter() - began_s)
    return min(tries)


if __name__ == "__main__":
    main(sys.argv[1:])
