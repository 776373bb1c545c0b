"""What the engine adds to a call that fits: microseconds over ``torch.matmul``, and speed of large ones.

python -m benchmarks small_calls
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from accelera import Matrix, MatrixEngine
from benchmarks.machine import save


def main(arguments: list[str]) -> dict[str, Any]:
    """Print and save the overhead of small calls and the ratio of large ones."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks small_calls")
    parser.add_argument("--save")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args(arguments)
    engine = MatrixEngine("cpu", enable_progress=False)
    calls, edge = (200, 256) if options.small else (5000, 4096)
    overhead = {f"{size}": _overhead_us(engine, size, calls) for size in (8, 64, 256)}
    large = _large_ratio(engine, edge, 2 if options.small else 7)
    figures = {"overhead_us": overhead, "large_edge": edge, "large_speed_of_torch": large}
    print(figures)
    if options.save:
        print("saved", save(options.save, figures))
    return figures


def _overhead_us(engine: MatrixEngine, size: int, calls: int) -> dict[str, float]:
    a, b = torch.randn(size, size), torch.randn(size, size)
    wrapped = Matrix(a), Matrix(b)
    plain, tensors, matrices = (
        _best_us(call, calls)
        for call in (lambda: torch.matmul(a, b), lambda: engine.matmul(a, b), lambda: engine.matmul(*wrapped))
    )
    return {"torch": plain, "tensors": tensors - plain, "matrices": matrices - plain}


def _best_us(call: Callable[[], object], calls: int) -> float:
    rounds = []
    for _ in range(7):
        began = time.perf_counter()
        for _ in range(calls // 7 + 1):
            call()
        rounds.append((time.perf_counter() - began) / (calls // 7 + 1) * 1e6)
    return min(rounds)


def _large_ratio(engine: MatrixEngine, edge: int, rounds: int) -> float:
    """Return the engine's speed as a share of torch's, median of interleaved rounds."""
    a, b = torch.randn(edge, edge), torch.randn(edge, edge)
    ratios = []
    for _ in range(rounds):
        plain = _seconds(lambda: torch.matmul(a, b))
        ratios.append(plain / _seconds(lambda: engine.matmul(a, b)))
    return statistics.median(ratios)


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


if __name__ == "__main__":
    main(sys.argv[1:])
