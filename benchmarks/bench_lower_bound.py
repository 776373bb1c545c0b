"""Planned bytes against the lower bound, over sizes and budgets; nothing is computed.

python -m benchmarks lower_bound
"""

from __future__ import annotations

import argparse
import math
import sys
from typing import Any

import numpy as np

from accelera.errors import BudgetExceededError
from accelera.plan._internal import CostModel, MatmulProblem, Objective, Operand, PlanLimits, plan_matmul
from benchmarks.machine import save

EDGES = (8192, 16384, 32768, 65536)
OVER = (1.1, 1.5, 1.9, 2.1, 2.3, 2.6, 2.9, 3.3, 4.0, 5.0, 5.7, 8.0)
"""Edge over the square root of the words that fit."""


def main(arguments: list[str]) -> dict[str, Any]:
    """Print and save one line per size and budget."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks lower_bound")
    parser.add_argument("--save")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args(arguments)
    edges, overs = ((8192,), (1.5, 2.3)) if options.small else (EDGES, OVER)
    figures: dict[str, Any] = {}
    objectives: tuple[Objective, ...] = ("time", "bytes")
    for objective in objectives:
        print(f"objective: {objective}")
        tried = [_row(edge, over, objective) for edge in edges for over in overs]
        rows = [row for row in tried if row is not None]
        figures[objective] = {"rows": rows, "k_above_2_sqrt_s": _summary(rows)}
        print(figures[objective]["k_above_2_sqrt_s"])
    if options.save:
        print("saved", save(options.save, figures))
    return figures


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how near the bound plans come where it is tight: above edge = 2 sqrt(S)."""
    ratios = [row["ratio"] for row in rows if row["over"] > 2 and row["edge"] >= 16384]
    return {
        "within_1.10": sum(each <= 1.10 for each in ratios),
        "of": len(ratios),
        "worst": max(ratios, default=None),
    }


def _row(edge: int, over: float, objective: Objective) -> dict[str, Any] | None:
    f32 = np.dtype(np.float32)
    a, b, c = (Operand(name, (edge, edge), f32, f32) for name in "ABC")
    capacity = int((edge / over) ** 2) * 4
    problem = MatmulProblem(a, b, c)
    cost = CostModel(flops_per_s=2e11)
    try:
        plan = plan_matmul(problem, PlanLimits(capacity), cost, objective=objective)
    except BudgetExceededError as refusal:
        print(f"{edge:7} edge/sqrt(S) {over:4}: {refusal}")
        return None
    row = {
        "edge": edge,
        "over": over,
        "capacity_bytes": capacity,
        "ratio": round(plan.bound_ratio, 4),
        "moved_bytes": plan.moved_bytes,
        "lower_bound_bytes": plan.lower_bound_bytes,
        "arithmetic_share_of_time": round(plan.forecast.compute_s / plan.forecast.seconds, 3),
        "plan": f"{plan.schedule}: {plan.shape_note}",
    }
    print(
        f"{edge:7} edge/sqrt(S) {over:4} ({math.ceil(capacity / 2**20)} MiB): {row['ratio']:.3f} x the bound"
    )
    return row


if __name__ == "__main__":
    main(sys.argv[1:])
