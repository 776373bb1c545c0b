"""The record of a step is compact: inside a budget a process grows little more than without one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.architecture.repository import run_python

MIB = 1 << 20

PROGRAM = """
import json, sys
import accelera.tensora as ts
from accelera.tensora import nn, optim

def mib(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name)) / 1024

kind, limit = sys.argv[1], int(sys.argv[2])
ts.random.manual_seed(0)
width = 40
if kind == "cells":
    cell, x = nn.LSTMCell(12, width), ts.random.randn(12, 280, 12)
elif kind == "many cells":
    cell, x = nn.GRUCell(12, width), ts.random.randn(8, 600, 12)
else:
    cell, x = nn.LSTM(12, width, batch_first=True), ts.random.randn(12, 200, 12)
head = nn.Linear(width, 1)
optimizer = optim.AdamW([*cell.parameters(), *head.parameters()])

def outputs():
    if kind == "layer":
        return head(cell(x)[0])
    state, total = None, 0
    for k in range(x.shape[1]):
        state = cell(x[:, k], state)
        total = total + head(state if kind == "many cells" else state[0])
    return total

def step():
    optimizer.zero_grad()
    outputs().square().mean().backward()
    optimizer.step()

ts.ones((300, 300)) @ ts.ones((300, 300))
before = mib("VmRSS")
ts.reset_peak()
budget = ts.budget(limit) if limit else None
for _ in range(4):
    if budget is None:
        step()
    else:
        with budget:
            step()
peak = ts.memory_stats().peak_bytes if budget is None else budget.report.peak_bytes
operations = 0 if budget is None else budget._steps.operation_count
print(json.dumps({"peak": peak, "grew": mib("VmHWM") - before, "operations": operations}))
"""


def measured(kind: str, limit: int, folder: Path) -> dict[str, Any]:
    ran = run_python("-c", PROGRAM, kind, str(limit), cwd=folder)
    assert ran.returncode == 0, ran.stderr
    report: dict[str, Any] = json.loads(ran.stdout)
    return report


@pytest.mark.parametrize("kind", ["cells", "many cells", "layer"])
def test_records_take_little_memory(kind: str, tmp_path: Path) -> None:
    free = measured(kind, 0, tmp_path)
    for share in (0.9, 0.6):
        limit = int(free["peak"] * share)
        bounded = measured(kind, limit, tmp_path)
        assert bounded["peak"] <= limit
        # A step that departs from the plan of the previous one needs two records in memory.
        records_mib = bounded["operations"] * 450 / MIB
        assert bounded["grew"] <= free["grew"] + 2 + records_mib
