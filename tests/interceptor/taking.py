"""Run as a program: one call within a budget, written as Python; prints what it took as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from torch.nn import functional

from accelera.interceptor import intercepted, stats
from accelera.memory import process_memory, reset_peak
from tests.children import answer_of


def taken(setting: str, call: str, budget: str) -> dict[str, Any]:
    """Return what ``call`` takes in a new process; ``setting`` makes its operands, smaller by ``shrink``."""
    answer: dict[str, Any] = answer_of("-m", "tests.interceptor.taking", setting, call, budget)
    return answer


def main(setting: str, call: str, budget: str) -> dict[str, Any]:
    _run(setting, call, budget, shrink=8)
    stats(reset=True)
    return _run(setting, call, budget, shrink=1)


def _run(setting: str, call: str, budget: str, shrink: int) -> dict[str, Any]:
    names: dict[str, Any] = {
        "torch": torch,
        "functional": functional,
        "randn": torch.randn,
        "shrink": shrink,
    }
    exec(setting, names)
    before = process_memory().rss_bytes
    reset_peak()
    with intercepted(budget, 0, 0, spill_dir=False):
        exec(call, names)
    peak = process_memory().peak_bytes - before
    return {"peak": peak, "chunked": stats().total.chunked}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
