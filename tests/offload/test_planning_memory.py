"""Measured peak <= planned peak <= budget, in a process that does nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
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


@pytest.fixture(scope="module")
def running() -> Iterator[dict[str, Future[dict[str, Any]]]]:
    """All jobs, two at a time: most of each is the start of its process."""
    with ThreadPoolExecutor(2) as pool:
        yield {name: pool.submit(measured, job) for name, job in JOBS.items()}


@pytest.mark.parametrize("name", JOBS)
def test_the_peak_keeps_to_the_plan(running: dict[str, Future[dict[str, Any]]], name: str) -> None:
    found = running[name].result()
    assert found["peak_pool_bytes"] <= found["planned_pool_bytes"]
    assert found["measured_bytes"] <= found["planned_bytes"] <= found["budget_bytes"]
