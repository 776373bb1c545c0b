"""Write the golden numbers anew: ``python -m tests.golden.regenerate``. Look at what changed.

They were equal to libCacheSim's when they were written, so the check also runs where it is absent.
"""

from __future__ import annotations

import json
from pathlib import Path

from accelera.policy import POLICIES
from accelera.simulator import simulate_cache
from tests.oracles.traces import TRACES, capacities

FILE = Path(__file__).parent / "cache_misses.json"
NAMES = tuple(name for name in POLICIES if name != "learned")

Golden = dict[str, dict[str, list[list[int]]]]


def figures() -> Golden:
    """Return misses and miss bytes per trace, policy and capacity."""
    found: Golden = {}
    for title, make in TRACES.items():
        trace = make()
        found[title] = {
            name: [
                [result.misses, result.miss_bytes]
                for capacity in capacities(trace)
                for result in [simulate_cache(trace, capacity_bytes=capacity, policy=name, seed=7)]
            ]
            for name in NAMES
        }
    return found


if __name__ == "__main__":
    lines = [
        f' "{title}": {{\n'
        + ",\n".join(f'  "{name}": {json.dumps(rows)}' for name, rows in policies.items())
        + "\n }"
        for title, policies in figures().items()
    ]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
