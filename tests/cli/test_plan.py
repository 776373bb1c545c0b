"""``accelera plan``: what would be done, and nothing done."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.cli.conftest import Case

Run = Callable[..., Any]


def test_text_is_the_plan_explained(case: Case, run: Run) -> None:
    ran = run("plan", "matmul", "A.npy", "B.npy", "--budget", "64MiB")
    assert ran.exit_code == 0
    for word in ("schedule", "peak", "bytes moved", "least", "time", "budget 64.0 MiB"):
        assert word in ran.stdout


def test_json_and_no_file_written(case: Case, run: Run) -> None:
    found = json.loads(
        run("plan", "matmul", "A.npy", "B.npy", "-o", "C.npy", "--budget", "64MiB", "--json").stdout
    )
    assert found["shapes"] == {"A": [512, 384], "B": [384, 448], "C": [512, 448]}
    assert found["peak_bytes"]["ram"] <= found["budget_bytes"] == 64 * 2**20
    assert found["compulsory_bytes"] == case.a.nbytes + case.b.nbytes + 4 * 512 * 448
    assert sorted(path.name for path in case.folder.iterdir()) == ["A.npy", "B.npy"]


@pytest.mark.parametrize(
    "words", [("A.npy", "B.npy", "--budget", "64MiB"), ("--budget", "64MiB", "./A.npy", "B.npy")]
)
def test_two_files_without_a_verb_are_a_product(case: Case, run: Run, words: tuple[str, ...]) -> None:
    assert run("plan", *words).stdout.startswith("matmul: A[512, 384]")


def test_the_smallest_budget_of_a_refusal_would_do(case: Case, run: Run) -> None:
    refused = run("plan", "matmul", "A.npy", "B.npy", "--budget", "1MiB", "--json")
    assert refused.exit_code == 3
    error = json.loads(refused.stdout)["error"]
    assert error["budget_bytes"] == 2**20
    assert run("plan", "matmul", "A.npy", "B.npy", "--budget", str(error["needed_bytes"])).exit_code == 0
    assert run("plan", "matmul", "A.npy", "B.npy", "--budget", str(error["needed_bytes"] - 1)).exit_code == 3


def test_a_share_of_the_memory(case: Case, run: Run) -> None:
    found = json.loads(run("plan", "matmul", "A.npy", "B.npy", "--budget", "50%", "--json").stdout)
    assert found["budget_bytes"] > 2**25
