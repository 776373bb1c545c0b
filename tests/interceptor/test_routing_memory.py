"""A call adds no more private memory than its budget, where plain torch would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.architecture.repository import run_python
from tests.interceptor.routing_peaks import measured

MIB = 1 << 20
WIDE = {"x": [[6000, 48], "float32"], "y": [[48, 6000], "float32"]}
NARROW = {"x": [[3000, 48], "float32"], "y": [[48, 3000], "float32"]}
LONG = {"x": [[5000, 2000], "float32"], "y": [[2000], "float32"]}

JOBS: dict[str, dict[str, Any]] = {
    "product into a file": {"call": "x @ y", **WIDE, "budget": 64 * MIB},
    "half product into a file": {
        "call": "x @ y",
        "x": [[6000, 48], "bfloat16"],
        "y": [[48, 6000], "bfloat16"],
        "budget": 40 * MIB,
    },
    "sum and product into a file": {"call": "torch.addmm(x[:, 0], x, y, beta=2)", **WIDE, "budget": 64 * MIB},
    "sum into a file": {"call": "x + y", **LONG, "budget": 24 * MIB},
    "turned, into a file": {"call": "x.T.exp()", **LONG, "budget": 24 * MIB},
    "softmax into a file": {"call": "x.softmax(-1)", **LONG, "budget": 24 * MIB},
    "strided product": {
        "call": "x[:, ::2] @ y[::2, :]",
        "x": [[64, 400_000], "float32"],
        "y": [[400_000, 64], "float32"],
        "budget": 40 * MIB,
    },
    "mixed types": {
        "call": "x + y",
        "x": [[5000, 1000], "int32"],
        "y": [[5000, 1000], "float32"],
        "budget": 30 * MIB,
    },
    "turned softmax": {"call": "x.T.softmax(-1)", "x": [[2000, 2500], "float32"], "budget": 24 * MIB},
    "fits": {"call": "x + 1", **LONG, "budget": 64 * MIB},
    "refused": {"call": "x @ y", **NARROW, "budget": 30 * MIB, "spill": False},
    "no room to work in": {"call": "x @ y", **NARROW, "budget": 1 * MIB},
}


@pytest.fixture(scope="module")
def took() -> dict[str, dict[str, Any]]:
    """Return what every job took, all in one new process."""
    return dict(zip(JOBS, measured(list(JOBS.values())), strict=True))


@pytest.mark.parametrize("name", [name for name in JOBS if "file" in name])
def test_a_result_larger_than_the_budget_goes_to_a_file(name: str, took: dict[str, dict[str, Any]]) -> None:
    assert took[name]["equal"]
    assert took[name]["spilled"] == 1
    assert took[name]["with_bytes"] <= JOBS[name]["budget"] < took[name]["without_bytes"]


@pytest.mark.parametrize("name", ["strided product", "mixed types", "turned softmax"])
def test_copies_that_torch_would_make_are_not_made(name: str, took: dict[str, dict[str, Any]]) -> None:
    assert took[name]["equal"]
    assert took[name]["chunked"] == 1
    assert took[name]["with_bytes"] <= JOBS[name]["budget"] < took[name]["without_bytes"]


def test_what_fits_is_torchs_own(took: dict[str, dict[str, Any]]) -> None:
    assert took["fits"]["direct"] == 1


def test_a_refusal_names_a_budget_that_does(took: dict[str, dict[str, Any]]) -> None:
    refused = took["refused"]
    for words in (
        "[mm]",
        "34.3 MiB",
        "30.0 MiB (31,457,280 bytes) that budget allows",
        f"{refused['needed_bytes']:,}",
        "spill",
    ):
        assert words in refused["refused"]
    assert refused["direct"] == 1


def test_too_little_to_work_in_is_refused_with_the_least_that_does(took: dict[str, dict[str, Any]]) -> None:
    refused = took["no room to work in"]
    assert "1.0 MiB (1,048,576 bytes) that budget allows" in refused["refused"]
    assert refused["equal"]
    assert refused["spilled"] == 1
    assert refused["with_bytes"] <= refused["needed_bytes"]


def test_the_heap_does_not_keep_the_parts(tmp_path: Path) -> None:
    """As the C library hands out memory by itself: freed parts that it cannot use again would add up."""
    code = (
        "import torch, accelera\n"
        "from accelera.memory import process_memory\n"
        "a = torch.rand(4000, 50)\n"
        f"accelera.enable('24MiB', spill_dir={str(tmp_path)!r})\n"
        "before = process_memory().anon_bytes\n"
        "result = a @ a.T\n"
        "assert accelera.stats().total.spilled == 1\n"
        "print(process_memory().anon_bytes - before)\n"
    )
    ran = run_python("-c", code, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) <= 24 << 20
