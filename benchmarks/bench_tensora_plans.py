"""Plans of training steps inside budgets, beside the integer program below them and checkpoints per block.

No step is trained in its budget: one step of each network is recorded with memory to spare, and planned.

python -m benchmarks tensora-plans --save tensora_plans
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import itertools
import math
import sys
import time
from typing import Any

import numpy as np

import accelera.tensora as ts
from accelera.tensora.step_plans import LEAST_BYTES, SPILL_SECONDS_PER_BYTE, PlanFrontier, StepPlans
from benchmarks.block_checkpoints import checkpointed
from benchmarks.integer_bound import IntegerBound, Step
from benchmarks.machine import save
from benchmarks.step_networks import NETWORKS, Training

SHARES = (0.95, 0.85, 0.75, 0.65, 0.6, 0.55, 0.52)
"""Of the free peak."""
BLOCKS = {"gpt2": 8, "vit": 12, "resnet50": 16, "mlp": 12}
BUDGETS = 200
KINDS = ("planned", "bound", "blocks")


def main(arguments: list[str]) -> dict[str, Any]:
    """Print and save what budgets of each network cost."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks tensora-plans")
    parser.add_argument("--save")
    parser.add_argument("--small", action="store_true", help="small networks")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    options = parser.parse_args(arguments)
    ts.set_num_threads(2)
    figures: dict[str, Any] = {}
    for name in options.networks:
        figures[name] = measured(name, small=options.small)
        _print(name, figures[name])
    if options.save:
        print("saved", save(options.save, {"networks": figures}))
    return figures


def recorded(training: Training, *, inside: bool) -> tuple[StepPlans, int]:
    """Plans of a step, and the bytes that none of them changes; optionally with the optimizer in backward."""
    training.step()  # makes the optimizer's state
    gc.collect()
    budget = ts.budget("16GiB", optimizer=training.optimizer if inside else None)
    with budget:
        training.step()
    plans = StepPlans(budget._steps, "cpu")
    return plans, budget.staircase()[0].peak_bytes - plans[0].top_bytes


def measured(name: str, *, small: bool) -> dict[str, Any]:
    """Figures of one network."""
    ts.random.manual_seed(0)
    training = NETWORKS[name](small=small)
    plans, fixed = recorded(training, inside=False)
    inside, fixed_inside = recorded(training, inside=True)
    free, floor = fixed + plans[0].top_bytes, fixed + plans.staircase[-1].top_bytes
    began = time.perf_counter()
    afresh = PlanFrontier(lambda: plans.graph, SPILL_SECONDS_PER_BYTE, LEAST_BYTES)
    afresh.select(int(0.6 * free) - fixed)
    planning = time.perf_counter() - began
    return {
        "free_peak_mb": free / 1e6,
        "outside_mb": fixed / 1e6,
        "floor_mb": floor / 1e6,
        "floor_optimizer_inside_mb": (fixed_inside + inside.staircase[-1].top_bytes) / 1e6,
        "operations": len(plans.columns["names"]),
        "gaps": len(plans.graph.gaps(LEAST_BYTES)),
        "plans": len(plans.staircase),
        "planning_seconds": planning,
        "digest": hashlib.sha256(repr(plans.staircase).encode()).hexdigest()[:16],
        "not_monotone": not_monotone(plans, free - fixed),
        "added": added(plans, fixed, free, BLOCKS[name]),
    }


def not_monotone(plans: StepPlans, free: int) -> int:
    """Return how many of 200 budgets take more memory, or less time, than a greater one."""
    budgets = np.linspace(plans.staircase[-1].top_bytes, free, BUDGETS)
    chosen = [plans.select(int(each)) for each in budgets]
    pairs = itertools.pairwise(chosen)
    wrong = [
        less is None
        or more is None
        or less.top_bytes > more.top_bytes
        or less.seconds < more.seconds
        or less.top_bytes > limit
        for limit, (less, more) in zip(budgets, pairs, strict=False)
    ]
    return int(sum(wrong))


def added(plans: StepPlans, fixed: int, free: int, blocks: int) -> list[dict[str, Any]]:
    """Time added at shares of the free peak, as shares of the step's; None where nothing fits."""
    bound = IntegerBound(Step.logged(plans.columns), SPILL_SECONDS_PER_BYTE, LEAST_BYTES)
    checkpoints = checkpointed(plans, blocks)
    rows = []
    for share in SHARES:
        room = int(share * free) - fixed
        chosen = plans.select(room)
        ours = math.inf if chosen is None else chosen.seconds
        block = min((seconds for top, seconds in checkpoints if top <= room), default=math.inf)
        found = {"planned": ours, "bound": bound.seconds(room), "blocks": block}
        rows.append({"share": share, **{k: _share(v, plans.seconds) for k, v in found.items()}})
    return rows


def _share(seconds: float, whole: float) -> float | None:
    return seconds / whole if math.isfinite(seconds) else None


def _print(name: str, figures: dict[str, Any]) -> None:
    words = (
        "{free_peak_mb:.0f} MB free, floor {floor_mb:.0f} MB, {floor_optimizer_inside_mb:.0f} MB with the "
    )
    words += "optimizer in backward; {plans} plans in {planning_seconds:.2f} s, {not_monotone} not monotone"
    print(f"{name}: {words.format(**figures)}")
    for row in figures["added"]:
        cells = (f"{kind} " + ("none" if row[kind] is None else f"{row[kind]:.1%}") for kind in KINDS)
        print(f"  {row['share']:.2f}  " + "  ".join(f"{cell:16}" for cell in cells))


if __name__ == "__main__":
    main(sys.argv[1:])
