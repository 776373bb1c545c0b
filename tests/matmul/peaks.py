"""What a product really takes, measured from inside a process of its own.

``python -m tests.matmul.peaks '<json>'`` prints the peak above the idle baseline, as the kernel counts
private and file-mapped pages, beside what the plan said.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from accelera.errors import BudgetExceededError
from accelera.memory import process_memory, reset_peak
from accelera.stores import Store, open_store
from tests.children import answer_of
from tests.matmul.products import ROOMY, cpu, values
from tests.planned import matmul


def measured(job: dict[str, Any]) -> dict[str, Any]:
    """Run ``main`` on ``job`` in a new process."""
    answer: dict[str, Any] = answer_of("-m", "tests.matmul.peaks", json.dumps(job))
    return answer


def main(text: str) -> None:
    job = json.loads(text)
    a, b = (_operand(job, name) for name in "ab")
    out, device = _result(job), cpu()
    if job.get("warm", True):
        _tiny(job)
    budget_bytes = job["budget_bytes"]
    before = process_memory()
    reset_peak()
    needed_bytes = peak_bytes = moved_bytes = 0
    try:
        _, report = matmul(a, b, out, device=device, budget_bytes=budget_bytes)
        peak_bytes, moved_bytes = report.plan.peak_bytes["ram"], report.moved_bytes
    except BudgetExceededError as refusal:
        needed_bytes = refusal.needed_bytes
    after = process_memory()
    answer = {
        "measured_bytes": after.peak_bytes - before.rss_bytes,
        "kept_bytes": after.rss_bytes - before.rss_bytes,
        "planned_bytes": peak_bytes,
        "budget_bytes": budget_bytes,
        "needed_bytes": needed_bytes,
        "moved_bytes": moved_bytes,
    }
    print(json.dumps(answer))


def _operand(job: dict[str, Any], name: str) -> Store:
    shape, place = job[f"shape_{name}"], job[name]
    if place == "ram":
        array = values(tuple(shape), job["dtype"])
        return open_store(array)
    described = {"shape": shape} if place.endswith(".bin") else {}
    store = open_store(place, dtype=job["dtype"], **described)
    return store.T if job.get("turned") else store


def _result(job: dict[str, Any]) -> Any:
    if job["out"] != "array":
        return job["out"]
    out = np.empty((job["shape_a"][0], job["shape_b"][1]), job["dtype"])
    out.view(np.uint8).fill(1)
    return out


def _tiny(job: dict[str, Any]) -> None:
    """Multiply something small the same way, so that everything is imported."""
    edge = slice(0, 8)
    a, b = _operand(job, "a")[edge, edge], _operand(job, "b")[edge, edge]
    out = None if job["out"] in (None, "array") else f"{job['out']}.tiny{Path(job['out']).suffix}"
    matmul(a, b, out, device=cpu(), budget_bytes=ROOMY)


if __name__ == "__main__":
    main(sys.argv[1])
