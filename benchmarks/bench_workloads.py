"""Whether policies are told apart: LRU, FIFO and Belady on the original's grid of synthetic workloads.

python -m benchmarks workloads
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import product
from typing import Any

from accelera.simulator import generate_synthetic_trace, score, simulate
from accelera.simulator._internal import WORKLOADS
from benchmarks.machine import save

BATCHES, LENGTHS, LAYERS, REUSE = (1, 8, 32, 64, 256), (32, 128, 512), (4, 12, 24), (0.1, 0.3, 0.6)
POLICIES = ("lru", "fifo", "belady")
EVERYTHING = 1 << 60


def main(arguments: list[str]) -> dict[str, Any]:
    """Print and save how many configurations tell policies apart, and how long the seed's example takes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks workloads")
    parser.add_argument("--save")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args(arguments)
    figures: dict[str, Any] = {"seed_example": _seed_example(5 if options.small else 200)}
    print(figures["seed_example"])
    for mode in ("inference", "training", "decode"):
        figures[mode] = _told_apart(mode, _grid(mode, small=options.small))
        print(mode, figures[mode])
    if options.save:
        print("saved", save(options.save, figures))
    return figures


def _grid(mode: str, *, small: bool) -> list[tuple[str, int, int, int, float]]:
    models = WORKLOADS if mode != "decode" else ("Transformer", "MoE")
    if small:
        return list(product(models, (8,), (32,), (4,), (0.3,)))
    if mode == "inference":
        return list(product(models, BATCHES, LENGTHS, LAYERS, REUSE))
    return list(product(models, (8, 64), LENGTHS, LAYERS[:2], REUSE))


def _told_apart(mode: str, grid: list[tuple[str, int, int, int, float]]) -> dict[str, int]:
    counts = {"configurations": len(grid), "lru_fifo": 0, "lru_belady": 0, "all_three": 0}
    for shape in grid:
        steps = 8 if mode == "decode" else None
        trace = generate_synthetic_trace(*shape, mode=mode, steps=steps)
        capacity = simulate(trace, EVERYTHING).peak_bytes // 2
        lru, fifo, belady = (simulate(trace, capacity, policy).moved_bytes for policy in POLICIES)
        counts["lru_fifo"] += lru != fifo
        counts["lru_belady"] += lru != belady
        counts["all_three"] += len({lru, fifo, belady}) == 3
    return counts


def _seed_example(rounds: int) -> dict[str, float]:
    """Return the best seconds for the seed's 12 layers: generated; and scored and simulated as well."""
    made, whole = [], []
    for _ in range(rounds):
        began = time.perf_counter()
        trace = generate_synthetic_trace("Transformer", 12, 32, 128, 0.3)
        made.append(time.perf_counter() - began)
        simulate(trace, "copilot", "ML", score=score(trace, "heuristic"))
        whole.append(time.perf_counter() - began)
    return {"accesses": trace.access_count, "generate_s": min(made), "end_to_end_s": min(whole)}


if __name__ == "__main__":
    main(sys.argv[1:])
