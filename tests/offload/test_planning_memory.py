"""Measured peak <= planned peak <= budget, in a process that does nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.offload.peaks import measured

JOBS = [
    {"layers": 6, "width": 1536, "rows": 4, "train": False, "budget": "72MiB"},
    {"layers": 6, "width": 1536, "rows": 512, "train": False, "budget": "80MiB"},
    {"layers": 4, "width": 1024, "rows": 256, "train": True, "budget": "80MiB"},
]


@pytest.mark.parametrize("job", JOBS, ids=["thin", "wide", "training"])
def test_the_peak_keeps_to_the_plan(job: dict[str, Any]) -> None:
    found = measured(job)
    assert found["planned_bytes"] <= found["budget_bytes"]
    assert found["peak_pool_bytes"] <= found["planned_pool_bytes"]
    assert found["measured_bytes"] <= found["planned_bytes"]
