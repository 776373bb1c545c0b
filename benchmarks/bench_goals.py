"""Which goals of the strategy executor are met: the figures that others have saved, as a table in Markdown.

python -m benchmarks goals

Nothing is measured here. A goal without figures says the command that makes them, or the tests that hold it.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from benchmarks.machine import RESULTS

COMMANDS = {
    "G1": "strategies --cases costs",
    "G2": "executors --cases one ten",
    "G3": "executors --cases tiny",
    "G4": "executors --cases products resizes",
    "G5": "processes --cases python",
    "G6": "processes --cases tiny",
    "G7": "strategies --cases threads",
    "G8": "strategies --cases regret",
    "G10": "dead_gpu",
    "G12": "bookkeeping",
    "G13": "cluster",
}
"""Benchmarks that measure the goals; results are saved under the first word."""
TESTS = {
    "G9": "tests/execution/test_faults_schedules.py, test_faults_kinds.py",
    "G11": "tests/execution/test_selection.py",
    "G13": "tests/execution/test_ray.py: after the death of a worker or a node all outputs are there",
    "G14": "tests/execution on a machine without a GPU",
}
"""Tests of the goals that are counted, not timed."""


def main(arguments: list[str]) -> dict[str, Any]:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks goals")
    parser.add_argument("--small", action="store_true", help="the same: there is nothing to be measured")
    parser.parse_args(arguments)
    rows = sorted((*_measured(), *_by_command(), *_by_tests()), key=lambda row: int(row[0][1:]))
    print("| goal | what | measured | aimed at | | from |\n|---|---|---|---|---|---|")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    return {"rows": rows}


def _measured() -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name in {command.split()[0] for command in COMMANDS.values()}:
        for case in _cases(name).values():
            for title, said in case.get("goals", {}).items():
                goal, what = title.split(": ", 1)
                verdict = "met" if said["met"] else "**missed**"
                bound = f"{'≥' if said['at_least'] else '≤'} {said['bound']:.4g}"
                source = f"`{name}`, {case['date'][:10]}, {case['commit']}"
                rows.append((goal, what, f"{said['measured']:.3g}", bound, verdict, source))
    return rows


def _by_command() -> list[tuple[str, ...]]:
    """Return the goals of which nothing is saved."""
    there = {row[0] for row in _measured()}
    return [
        (goal, f"`python -m benchmarks {command}`", "not yet", "", "", "")
        for goal, command in COMMANDS.items()
        if goal not in there
    ]


def _by_tests() -> list[tuple[str, ...]]:
    return [(goal, "held by tests", "", "", "", where) for goal, where in TESTS.items()]


def _cases(name: str) -> dict[str, Any]:
    path = RESULTS / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text()).get("cases", {}) if path.exists() else {}
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
