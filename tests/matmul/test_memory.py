"""Measured <= planned <= budget, and what is refused takes nothing.

The process is watched from inside: private and file-mapped pages above its idle baseline.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accelera.engine.options import RUNTIME_BYTES
from accelera.errors import BudgetExceededError
from tests.matmul.interrupted import nothing_left
from tests.matmul.peaks import measured
from tests.matmul.products import (
    BFLOAT16,
    PLACES,
    SUFFIXES,
    assert_as_planned,
    assert_close,
    cpu,
    in_npy,
    in_ram,
    read_back,
    smallest_budget,
    values,
)
from tests.planned import matmul

MIB = 1 << 20
CASES = [
    ("npy", "f4", (1600, 1500, 1600)),
    ("npy-f", "f8", (1100, 1000, 1200)),
    ("npy", "f2", (2500, 600, 2500)),
    ("npy", "c16", (700, 700, 700)),
    ("raw", "i4", (1200, 1200, 1200)),
    ("safetensors", BFLOAT16, (2500, 600, 2500)),
    ("zarr", "f4", (1600, 1500, 1600)),
    ("zarr", "f2", (2500, 600, 2500)),
]


def job_of(folder: Path, place: str, dtype: Any, sizes: tuple[int, int, int]) -> dict[str, Any]:
    """Put operands into files and describe their product."""
    m, k, n = sizes
    dtype = np.dtype(dtype)
    a, b = (
        PLACES[place](folder / "a", values((m, k), dtype)),
        PLACES[place](folder / "b", values((k, n), dtype, 1)),
    )
    out = str(folder / f"c{SUFFIXES[place.split('-')[0]]}")
    least_bytes = smallest_budget(a, b, out)
    job = {"a": a.name, "b": b.name, "out": out, "dtype": dtype.name, "shape_a": (m, k), "shape_b": (k, n)}
    return {**job, "budget_bytes": least_bytes + MIB, "least_bytes": least_bytes}


@pytest.mark.parametrize(("place", "dtype", "sizes"), CASES, ids=str)
def test_the_process_stays_inside_its_plan(
    tmp_path: Path, place: str, dtype: Any, sizes: tuple[int, int, int]
) -> None:
    job = job_of(tmp_path, place, dtype, sizes)
    answer = measured(job)
    assert answer["moved_bytes"] > 0
    assert 0 < answer["measured_bytes"] <= answer["planned_bytes"] <= answer["budget_bytes"]
    rows, cols = slice(0, 20), slice(0, 20)
    got = read_back(Path(job["out"]), (sizes[0], sizes[2]), dtype)[rows, cols]
    assert_close(got, values(job["shape_a"], dtype)[rows], values(job["shape_b"], dtype, 1)[:, cols])


def test_also_when_nothing_was_warm(tmp_path: Path) -> None:
    """The BLAS library's own buffers, and whatever is loaded by the first product, are planned for."""
    answer = measured({**job_of(tmp_path, "npy", "f4", (1600, 1500, 1600)), "warm": False})
    assert 0 < answer["measured_bytes"] <= answer["planned_bytes"] <= answer["budget_bytes"]


def test_operands_and_result_in_memory_are_not_copied(tmp_path: Path) -> None:
    """Used in place: less than one of them is taken on top, though each has 10 MiB."""
    shape = (1600, 1600)
    job = {"a": "ram", "b": "ram", "out": "array", "dtype": "float32", "shape_a": shape, "shape_b": shape}
    answer = measured({**job, "budget_bytes": 40 * MIB})
    assert answer["moved_bytes"] == 0
    assert answer["measured_bytes"] <= min(answer["planned_bytes"], 9 * MIB)


def test_half_types_in_memory_are_converted_block_by_block(tmp_path: Path) -> None:
    """Whole copies in single precision would take 3 x 16 MiB."""
    shape = (2000, 2000)
    job = {"a": "ram", "b": "ram", "out": "array", "dtype": "float16", "shape_a": shape, "shape_b": shape}
    least_bytes = smallest_budget(*(in_ram(tmp_path, values(shape, "f2")),) * 2, np.empty(shape, "f2"))
    answer = measured({**job, "budget_bytes": least_bytes + MIB})
    assert 0 < answer["measured_bytes"] <= answer["planned_bytes"] <= least_bytes + MIB


def test_a_refusal_takes_no_memory_and_no_disk(tmp_path: Path) -> None:
    job = job_of(tmp_path, "npy", "f4", (1600, 1500, 1600))
    before = {each.name for each in tmp_path.iterdir()}
    answer = measured({**job, "budget_bytes": job["least_bytes"] - 1})
    assert answer["needed_bytes"] == job["least_bytes"]
    assert answer["measured_bytes"] < RUNTIME_BYTES, "the planner's own tables"
    tiny = {f"{Path(job['out']).name}.tiny.npy"}
    assert {each.name for each in tmp_path.iterdir()} - tiny == before


def test_the_first_refusal_of_a_process_stays_below_what_it_refused(tmp_path: Path) -> None:
    """The machine's speed is measured once, in less memory than any plan needs."""
    job = job_of(tmp_path, "npy", "f4", (1600, 1500, 1600))
    answer = measured({**job, "budget_bytes": 1000, "warm": False})
    assert answer["needed_bytes"] == job["least_bytes"]
    assert answer["measured_bytes"] < answer["needed_bytes"]


@pytest.mark.parametrize("prefetch", [True, False])
@pytest.mark.parametrize(
    ("place", "dtype"),
    [
        *[("npy", dtype) for dtype in ("f4", "f2", "f8", "c8", "c16", "i1", "u8", BFLOAT16)],
        *[("zarr", dtype) for dtype in ("f4", "f2", "i8")],
        *[("ram", dtype) for dtype in ("f2", BFLOAT16)],
    ],
    ids=str,
)
def test_the_budget_named_is_the_smallest_that_does(
    tmp_path: Path, place: str, dtype: Any, prefetch: bool
) -> None:
    """It works; one byte less is refused, with both numbers, and leaves nothing behind."""
    a, b = values((270, 60), dtype), values((60, 280), dtype, 1)
    stores = PLACES[place](tmp_path / "a", a), PLACES[place](tmp_path / "b", b)
    out = tmp_path / f"c{SUFFIXES[place]}" if place in SUFFIXES else None
    least_bytes = smallest_budget(*stores, out, prefetch=prefetch)
    before = {each.name for each in tmp_path.iterdir()}
    for budget_bytes in (least_bytes - 1, least_bytes // 2, 0):
        with nothing_left(), pytest.raises(BudgetExceededError, match=r"\[matmul\]") as refusal:
            matmul(*stores, out, device=cpu(), budget_bytes=budget_bytes, prefetch=prefetch)
        assert refusal.value.needed_bytes == least_bytes
        assert refusal.value.budget_bytes == budget_bytes
        assert str(least_bytes) in str(refusal.value)
        assert str(budget_bytes) in str(refusal.value)
        assert {each.name for each in tmp_path.iterdir()} == before
    store, report = matmul(*stores, out, device=cpu(), budget_bytes=least_bytes, prefetch=prefetch)
    assert_as_planned(report)
    assert_close(store.to_numpy() if out is None else read_back(out, (270, 280), dtype), a, b)


@pytest.mark.parametrize("out", ["file", "array", None])
def test_a_result_in_memory_counts_and_the_callers_does_not(tmp_path: Path, out: str | None) -> None:
    """New memory for the result is part of the budget; what the caller holds already is not."""
    a, b = values((400, 30), "f4"), values((30, 400), "f4", 1)
    stores = in_npy(tmp_path / "a", a), in_npy(tmp_path / "b", b)
    result_bytes = 400 * 400 * 4
    targets = {"file": tmp_path / "c.npy", "array": np.empty((400, 400), "f4"), None: None}
    least_bytes = smallest_budget(*stores, targets[out])
    _, report = matmul(*stores, targets[out], device=cpu(), budget_bytes=least_bytes)
    assert report.plan.reserved["result"] == (result_bytes if out is None else 0)
    assert report.bytes_written == (result_bytes if out == "file" else 0)
    if out is None:
        assert least_bytes == smallest_budget(*stores, targets["array"]) + result_bytes
