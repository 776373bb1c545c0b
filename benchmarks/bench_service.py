"""Latency and throughput of the Copilot's service over HTTP, as one process that ``accelera serve`` starts.

    python -m benchmarks service
    python -m benchmarks service --cases one_client repeated --save service

The clients are another process, which takes part of the second core.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from typing import Any

from benchmarks import cases
from benchmarks.goals import Goal, judged
from benchmarks.service_load import SEED, Load, measured, served

MODEL = {
    "model_type": "Transformer",
    "num_layers": 12,
    "batch_size": 32,
    "seq_length": 128,
    "reuse_probability": 0.3,
}
"""The seed's: 580 accesses."""
SIMULATE = json.dumps({**MODEL, "seed": 0}).replace('"seed": 0', f'"seed": {SEED}')
TRAINING = {"mode": "training", "num_layers": 24, "steps": 2}
"""8,376 accesses."""
FIT = json.dumps({"source": TRAINING, "budget": "BUDGET"}).replace("BUDGET", f"{SEED}MB")
FIRST = 1_000_000
"""Seeds from here on were not requested before."""


def main(arguments: list[str]) -> dict[str, Any]:
    """Print and save the figures."""
    parser = cases.parser("service", CASES)
    options = parser.parse_args(arguments)
    return cases.run(
        options, {name: functools.partial(_with_service, case, options.small) for name, case in CASES.items()}
    )


def _with_service(case: Callable[[str, float], dict[str, Any]], small: bool) -> dict[str, Any]:
    """Run a case on a service of its own, with a hundredth of its requests when it is to be ``small``."""
    with served() as addresses:
        return case(addresses["url"], 0.01 if small else 1.0)


def _one_client(url: str, share: float) -> dict[str, Any]:
    """Measure one client whose every request has a new seed, so that no reply is in the cache."""
    load = Load(url, "/v1/simulate", SIMULATE, seconds=60, requests=int(2000 * share), first_seed=FIRST)
    figures = _warm(load)
    goals = (
        Goal("S1", "one client, uncached /simulate: median, ms", figures["p50_ms"], 10),
        Goal("S1", "one client, uncached /simulate: p99, ms", figures["p99_ms"], 25),
    )
    return _with_goals(figures, *goals)


def _repeated(url: str, share: float) -> dict[str, Any]:
    """Measure 50 clients whose requests are all in the cache."""
    figures = _warm(Load(url, "/v1/simulate", SIMULATE, clients=50, seconds=20 * share, seeds=8))
    goals = (
        Goal("S2", "50 clients, repeated /simulate: requests a second", figures["per_second"], 1000, True),
        Goal("S2", "50 clients, repeated /simulate: p99, ms", figures["p99_ms"], 60),
    )
    return _with_goals(figures, *goals)


def _what_if(url: str, share: float) -> dict[str, Any]:
    """Measure requests for one model in a new budget each time, as a slider sends them."""
    load = Load(url, "/v1/fit", FIT, seconds=60, requests=int(400 * share), first_seed=3_000)
    figures = _warm(load)
    return _with_goals(
        figures, Goal("S3", "/fit without bound at 8,376 accesses: median, ms", figures["p50_ms"], 50)
    )


def _crowd(url: str, share: float) -> dict[str, Any]:
    """Measure 200 clients for a minute that share 100 different requests."""
    figures = _warm(Load(url, "/v1/simulate", SIMULATE, clients=200, seconds=60 * share, seeds=100))
    goals = (
        Goal("S4", "200 clients for a minute, 100 questions: p99, ms", figures["p99_ms"], 300),
        *_nothing_lost(figures, "100 questions"),
    )
    return _with_goals(figures, *goals)


def _crowd_uncached(url: str, share: float) -> dict[str, Any]:
    """Measure 200 clients for a minute whose requests are all different."""
    load = Load(url, "/v1/simulate", SIMULATE, clients=200, seconds=60 * share, first_seed=FIRST)
    figures = _warm(load)
    return _with_goals(figures, *_nothing_lost(figures, "all different"))


CASES: dict[str, Callable[[str, float], dict[str, Any]]] = {
    "one_client": _one_client,
    "repeated": _repeated,
    "what_if": _what_if,
    "crowd": _crowd,
    "crowd_uncached": _crowd_uncached,
}


def _warm(load: Load) -> dict[str, Any]:
    """Let a few requests pass, then measure."""
    measured(Load(load.url, load.path, load.body, requests=20, seeds=1, first_seed=2_000))
    return measured(load)


def _nothing_lost(figures: dict[str, Any], which: str) -> tuple[Goal, ...]:
    return (
        Goal("S4", f"200 clients for a minute, {which}: error rate", figures["error_rate"], 0),
        Goal("S4", f"200 clients for a minute, {which}: lost", figures["lost"], 0),
    )


def _with_goals(figures: dict[str, Any], *goals: Goal) -> dict[str, Any]:
    shown = ", ".join(f"{name} {figures[name]:.1f}" for name in ("p50_ms", "p99_ms", "most_ms"))
    print(f"{figures['requests']:,} requests, {figures['per_second']:.0f} a second, {shown}")
    return {**figures, "goals": judged(goals)}


if __name__ == "__main__":
    main(sys.argv[1:])
