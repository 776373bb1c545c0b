"""Benchmarks in cases that can be run one by one, their figures in one file."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from benchmarks.machine import add

Case = Callable[[], dict[str, Any]]
"""Runs a case and returns its figures; those under ``"goals"`` come from ``benchmarks.goals.judged``."""


def parser(name: str, cases: Iterable[str]) -> argparse.ArgumentParser:
    """Return the options that such benchmarks have in common."""
    names = list(cases)
    options = argparse.ArgumentParser(prog=f"python -m benchmarks {name}")
    options.add_argument("--cases", nargs="+", choices=names, default=names, help="default: all")
    options.add_argument("--save", help="name of the results file; figures of other cases in it are kept")
    options.add_argument("--small", action="store_true", help="seconds instead of minutes")
    return options


def run(options: argparse.Namespace, cases: Mapping[str, Case]) -> dict[str, Any]:
    """Run the chosen cases; return their figures by case, each saved as soon as it is there."""
    figures = {}
    for name in options.cases:
        print(f"-- {name}", flush=True)
        began = time.perf_counter()
        figures[name] = cases[name]()
        figures[name]["took_s"] = time.perf_counter() - began
        if options.save:
            print("saved", add(options.save, name, figures[name]))
    return figures
