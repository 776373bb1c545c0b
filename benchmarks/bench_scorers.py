"""Scorers on models that they were not trained on: how well they predict, and what that saves.

python -m benchmarks scorers            leave one model out, all six of them
python -m benchmarks scorers --train    also train on all six and put the model into the package
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from typing import Any

import numpy as np

from accelera.policy._internal import heuristic_scores, replay_next_uses
from accelera.simulator import gated, simulate, train_scorer
from accelera.simulator.scorers.learned import SHIPPED, learned_scores, next_distances
from accelera.trace import Trace
from benchmarks.machine import save
from benchmarks.models import reference_traces

SHARES = (0.75, 0.5, 0.3)
"""Capacities, of the most bytes alive."""
PLAIN = ("lru", "fifo", "largest", "gdsf")
INFORMED = ("belady", "planner")
GIB = 2**30


def main(arguments: list[str]) -> dict[str, Any]:
    """Print and save one row per model and capacity, and how well the trees predict per model."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks scorers")
    parser.add_argument("--save")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--train", action="store_true")
    options = parser.parse_args(arguments)
    traces = reference_traces(2 if options.small else 3, small=options.small)
    names = list(traces)[:2] if options.small else list(traces)
    figures: dict[str, Any] = {"prediction": {}, "traffic": [], "iterations": 2 if options.small else 3}
    for name in names:
        others = [trace for other, trace in traces.items() if other != name]
        figures["prediction"][name], scores = _prediction(traces[name], others)
        print(name, figures["prediction"][name])
        figures["traffic"] += [_traffic(name, traces[name], share, scores) for share in SHARES]
    figures["against_best_plain"] = _summary(figures["traffic"])
    print(figures["against_best_plain"])
    if options.train:
        _ship(list(traces.values()))
    if options.save:
        print("saved", save(options.save, figures))
    return figures


def _prediction(trace: Trace, others: list[Trace]) -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
    """Train on ``others``, predict ``trace``; return how well, and the scores."""
    began = time.perf_counter()
    model = train_scorer(others)
    trained = time.perf_counter()
    scores = learned_scores(trace, model)
    predicted = time.perf_counter()
    distance = next_distances(trace)
    known = np.flatnonzero(np.isfinite(distance))
    truth, guess = np.log2(distance[known]), np.log2(np.maximum(scores[known] - known, 1))
    row = {
        "accesses": trace.access_count,
        "r2": round(1 - float(((truth - guess) ** 2).sum() / ((truth - truth.mean()) ** 2).sum()), 3),
        "rank_correlation": round(_rank_correlation(truth, guess), 3),
        "train_s": round(trained - began, 2),
        "predict_s": round(predicted - trained, 3),
        "model_kb": len(model) // 1000,
    }
    return row, scores


def _rank_correlation(left: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> float:
    from scipy.stats import spearmanr

    return float(spearmanr(left, right).statistic)


def _traffic(name: str, trace: Trace, share: float, learned: np.ndarray[Any, Any]) -> dict[str, Any]:
    capacity = int(share * trace.meta["peak_live_bytes"])
    moved = {policy: simulate(trace, capacity, policy).moved_bytes / GIB for policy in (*PLAIN, *INFORMED)}
    scores = {"heuristic": heuristic_scores(trace), "replay": replay_next_uses(trace), "learned": learned}
    for scorer, given in scores.items():
        moved[scorer] = simulate(trace, capacity, "scored", score=given).moved_bytes / GIB
    choices = {scorer: gated(trace, given, capacity) for scorer, given in scores.items()}
    row = {
        "model": name,
        "share_of_peak": share,
        "moved_gib": {policy: round(value, 3) for policy, value in moved.items()},
        "gate_lets_in": {scorer: choice.accepted for scorer, choice in choices.items()},
    }
    print(f"  {share:.0%} of peak:", ", ".join(f"{key} {value:.2f}" for key, value in moved.items()))
    print("   let in:", ", ".join(scorer for scorer, choice in choices.items() if choice.accepted) or "none")
    return row


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return per scorer the geometric mean and the worst of its bytes over the best plain heuristic's."""
    found = {}
    for scorer in ("heuristic", "replay", "learned", "belady", "planner"):
        ratios = [
            row["moved_gib"][scorer] / max(min(row["moved_gib"][policy] for policy in PLAIN), 1e-9)
            for row in rows
        ]
        mean = math.exp(sum(math.log(max(ratio, 1e-9)) for ratio in ratios) / len(ratios))
        found[scorer] = {
            "geometric_mean": round(mean, 3),
            "worst": round(max(ratios), 3),
            "worse_by_over_1_percent": sum(ratio > 1.01 for ratio in ratios),
            "of": len(ratios),
        }
    return found


def _ship(traces: list[Trace]) -> None:
    from accelera.simulator import scorers

    path = f"{scorers.__path__[0]}/{SHIPPED}"
    with open(path, "w", encoding="utf-8") as file:
        file.write(train_scorer(traces))
    print("wrote", path)


if __name__ == "__main__":
    main(sys.argv[1:])
