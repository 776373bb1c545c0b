"""How near policies come to the least bytes any schedule moves, on six captured models.

python -m benchmarks bound
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from typing import Any

from accelera.policy import POLICIES
from accelera.simulator import plan_residency, simulate
from accelera.simulator.time_steps import TimeSteps
from accelera.trace import Occupancy, Trace
from benchmarks.machine import save
from benchmarks.models import llama_7b_step, reference_traces

SHARES = (0.30, 0.50, 0.75)
"""Capacities, of the peak; never below the largest step."""
PLANNED = "planner, planned"
"""The planner with the linear program's plan as its score."""
SHOWN = ("lru", "belady", "iteration_replay", "planner", PLANNED)


def main(arguments: list[str]) -> dict[str, Any]:
    """Print and save one line per model and capacity: moved bytes over the bound."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks bound")
    parser.add_argument("--save")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args(arguments)
    traces = reference_traces(2 if options.small else 3, small=options.small)
    print(f"{'model':>10} {'share':>5} {'bound MiB':>11} {'s':>6} " + " ".join(f"{n:>16}" for n in SHOWN))
    rows = [_row(name, trace, share) for name, trace in traces.items() for share in SHARES]
    means = {policy: _mean(rows, policy) for policy in rows[0]["regret"]}
    print("geometric mean", {policy: means[policy] for policy in SHOWN})
    large = _row("llama-7b", llama_7b_step(small=options.small), 0.5)
    figures = {"rows": rows, "geometric_mean": means, "llama_7b_step": large}
    if options.save:
        print("saved", save(options.save, figures))
    return figures


def _row(name: str, trace: Trace, share: float) -> dict[str, Any]:
    capacity = max(int(share * Occupancy(trace).peak_bytes), TimeSteps.of(trace).floor_bytes)
    began_s = time.perf_counter()
    plan = plan_residency(trace, capacity)
    seconds = time.perf_counter() - began_s
    moved = {each: simulate(trace, capacity, each).moved_bytes for each in POLICIES if each != "learned"}
    moved[PLANNED] = simulate(trace, capacity, "planner", score=plan.dropped).moved_bytes
    regret = {policy: round(each / plan.lower_bound_bytes, 4) for policy, each in moved.items()}
    shown = " ".join(f"{regret[policy]:16.3f}" for policy in SHOWN)
    print(
        f"{name:>10} {share:5.2f} {plan.lower_bound_bytes / 2**20:11.1f} {seconds:6.2f} {shown}", flush=True
    )
    return {
        "model": name,
        "share": share,
        "accesses": trace.access_count,
        "capacity_bytes": capacity,
        "lower_bound_bytes": plan.lower_bound_bytes,
        "bound_seconds": round(seconds, 3),
        "regret": regret,
    }


def _mean(rows: list[dict[str, Any]], policy: str) -> float:
    return round(math.exp(sum(math.log(row["regret"][policy]) for row in rows) / len(rows)), 4)


if __name__ == "__main__":
    main(sys.argv[1:])
