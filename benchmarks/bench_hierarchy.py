"""The hierarchy loop: accesses per second, seconds of one what-if, and the seed's run from end to end.

python -m benchmarks hierarchy

Ten million reads by Zipf's law, each a step of its own, in two tiers; the training step of a 7B Llama,
captured; twenty policies at fifty capacities on a trace of 60,000 accesses, on two threads; and the seed's
Transformer of twelve layers: generated, scored, simulated, its metrics read. Best of several rounds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from accelera import generate_synthetic_trace, simulate
from accelera.policy import POLICIES
from accelera.policy._internal import heuristic_scores
from accelera.trace import Trace
from benchmarks.bench_cache import zipf
from benchmarks.machine import save
from benchmarks.models import llama_7b_step

LOOPS = ("lru", "fifo", "sieve", "belady", "planner")


def main(arguments: list[str]) -> dict[str, Any]:
    """Print and save all figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks hierarchy")
    parser.add_argument("--save")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    rounds = 1 if options.small else options.rounds
    reads = zipf(*((50_000, 5_000) if options.small else (10_000_000, 1_000_000)))
    step = llama_7b_step(small=options.small)
    figures: dict[str, Any] = {
        "zipf": _rates("zipf", reads, rounds),
        "llama_7b_step": _rates("7B step", step, rounds),
        "sweep": _sweep(_repeated(step, 60_000), 3 if options.small else 50),
        "seed_run_s": _best_s(_seed_run, rounds),
    }
    print(f"the seed's run: {figures['seed_run_s'] * 1e3:.2f} ms")
    if options.save:
        print("saved", save(options.save, figures))
    return figures


def _rates(what: str, trace: Trace, rounds: int) -> list[dict[str, Any]]:
    """Return the speed of a what-if at a tenth of the footprint per policy, the trace being prepared."""
    rows = []
    for name in (name for name in LOOPS if name in POLICIES):
        replay = _replay(trace, trace.footprint_bytes // 10, name)
        replay()
        seconds = _best_s(replay, rounds)
        rate = trace.access_count / seconds
        rows.append({"policy": name, "accesses_per_s": rate, "seconds": seconds})
        print(f"{what:8} {name:8} {rate / 1e6:6.1f} M accesses/s, {seconds * 1e3:.2f} ms", flush=True)
    return rows


def _replay(trace: Trace, capacity_bytes: int, policy: str) -> Callable[[], Any]:
    return lambda: simulate(trace, capacity_bytes, policy, score=_score(trace, policy))


def _score(trace: Trace, policy: str) -> Any:
    """``learned`` follows a score it is given: the heuristic's will do to measure its speed."""
    return heuristic_scores(trace) if policy == "learned" else None


def _repeated(trace: Trace, accesses: int) -> Trace:
    """Return ``trace`` again and again, about ``accesses`` accesses long."""
    times = max(round(accesses / trace.access_count), 1)
    steps = np.concatenate([trace.step + round_ * trace.step_count for round_ in range(times)])
    return Trace.from_arrays(
        np.tile(trace.buffer, times),
        trace.size_bytes[np.tile(trace.buffer, times)],
        kinds=np.tile(trace.kind, times),
        steps=steps,
    )


def _sweep(trace: Trace, capacities: int) -> dict[str, Any]:
    """Time all policies at many capacities on two threads, preparation included."""
    policies = POLICIES[:20]
    sizes = np.linspace(0.05, 1, capacities) * trace.footprint_bytes
    tasks = [_replay(trace, int(size), name) for name in policies for size in sizes]
    begun = time.perf_counter()
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda task: task(), tasks))
    seconds = time.perf_counter() - begun
    print(f"{len(tasks)} what-ifs of {trace.access_count:,} accesses on two threads: {seconds:.2f} s")
    return {"what_ifs": len(tasks), "accesses": trace.access_count, "seconds": seconds}


def _seed_run() -> dict[str, Any]:
    trace = generate_synthetic_trace("Transformer", 12, 32, 128, 0.3, seed=0)
    return simulate(trace, "copilot", "ML").as_seed_metrics()


def _best_s(run: Callable[[], Any], rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        begun = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - begun)
    return best


if __name__ == "__main__":
    main(sys.argv[1:])
