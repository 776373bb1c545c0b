"""Run as a program: one call within a budget, written as Python; prints what it took as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from accelera.interceptor import intercepted, stats
from accelera.memory import process_memory, reset_peak

ROOT = Path(__file__).parents[2]


def taken(setting: str, call: str, budget: str) -> dict[str, Any]:
    """Return what ``call`` takes in a new process; ``setting`` makes its operands, smaller by ``shrink``."""
    program = [sys.executable, "-m", "tests.interceptor.taking", setting, call, budget]
    ended = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=840, check=False)
    assert ended.returncode == 0, ended.stderr
    answer: dict[str, Any] = json.loads(ended.stdout)
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
    with intercepted(budget, 0, 0, spill=False):
        exec(call, names)
    peak = process_memory().peak_bytes - before
    return {"peak": peak, "chunked": stats().total.chunked}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
