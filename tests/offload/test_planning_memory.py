"""Measured peak <= planned peak <= budget, in a process that does nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.offload.peaks import measured

JOBS = {
    "layers": {"kind": "layers", "rows": 1024, "train": False, "budget": "56MiB"},
    "words": {"kind": "words", "rows": 8, "train": False, "budget": "48MiB"},
    "pictures": {"kind": "pictures", "rows": 16, "train": False, "budget": "64MiB"},
    "table": {"kind": "table", "rows": 16, "train": False, "budget": "48MiB"},
    "layers in training": {"kind": "layers", "rows": 256, "train": True, "budget": "48MiB"},
    "words in training": {"kind": "words", "rows": 8, "train": True, "budget": "64MiB"},
    "pictures in training": {"kind": "pictures", "rows": 8, "train": True, "budget": "72MiB"},
    "table in training": {"kind": "table", "rows": 16, "train": True, "budget": "64MiB"},
}


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS.keys())
def test_the_peak_keeps_to_the_plan(job: dict[str, Any]) -> None:
    found = measured(job)
    assert found["peak_pool_bytes"] <= found["planned_pool_bytes"]
    assert found["measured_bytes"] <= found["planned_bytes"] <= found["budget_bytes"]
