"""What an offloaded model really takes, measured from inside a process of its own.

``python -m tests.offload.peaks '<json>'`` prints the peak above the idle process beside what the plan said.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from accelera import offload, offloaded
from accelera.memory import process_memory, reset_peak

ROOT = Path(__file__).parents[2]


def measured(job: dict[str, Any]) -> dict[str, Any]:
    """Run ``main`` on ``job`` in a new process."""
    command = [sys.executable, "-m", "tests.offload.peaks", json.dumps(job)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 0, ended.stderr
    answer: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return answer


def main(job: dict[str, Any]) -> dict[str, Any]:
    torch.set_num_threads(2)
    width, rows, train = job["width"], job["rows"], job["train"]
    _pass(nn.Linear(64, 64), torch.randn(4, 64), train)
    inputs = torch.randn(rows, width)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(job["layers"])))
    offload(model.train(train), job["budget"], inputs=inputs)
    gc.collect()
    before = process_memory()
    reset_peak()
    for _ in range(3):
        _pass(model, inputs, train)
    plan = offloaded(model).plan
    assert plan is not None
    return {
        "measured_bytes": process_memory().peak_bytes - before.rss_bytes,
        "planned_bytes": plan.peak_bytes["ram"],
        "budget_bytes": plan.budget_bytes,
        "peak_pool_bytes": offloaded(model).report().peak_bytes,
        "planned_pool_bytes": plan.peak_pool_bytes,
    }


def _pass(model: nn.Module, inputs: torch.Tensor, train: bool) -> None:
    with torch.set_grad_enabled(train):
        out = model(inputs).mean()
    if train:
        model.zero_grad()
        out.backward()


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
