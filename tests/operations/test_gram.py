"""Gram matrices: values, both sides, one triangle computed, any store, the budget kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelera.engine.gram import Mirrored
from accelera.errors import BudgetExceededError, DTypeError, ShapeError
from accelera.plan._internal import (
    CostModel,
    GramProblem,
    MatmulProblem,
    Operand,
    PlanLimits,
    plan_gram,
    plan_matmul,
)
from accelera.stores import open_store
from tests.matmul.products import BFLOAT16, HALVES, PLACES, SUFFIXES, values
from tests.operations.running import CPU, run, smallest_budget
from tests.planned import gram, plan_gram_of

DTYPES = [np.dtype(name) for name in ("f2", "f4", "f8", "c8", "c16", "i4", "u1")]


def reference(a: np.ndarray[Any, Any], side: str) -> np.ndarray[Any, Any]:
    wide = {"c": "c16", "i": "i8", "u": "u8"}.get(a.dtype.kind, "f8")
    left = np.conj(np.swapaxes(a, -1, -2)).astype(wide)
    with np.errstate(over="ignore"):
        return left @ a.astype(wide) if side == "left" else a.astype(wide) @ left


def assert_gram(got: np.ndarray[Any, Any], a: np.ndarray[Any, Any], side: str) -> None:
    assert got.dtype == a.dtype
    wanted = reference(a, side)
    if a.dtype.kind in "iu":
        np.testing.assert_array_equal(got, wanted.astype(a.dtype))
        return
    rounding = 1e-2 if a.dtype in HALVES else 1e-4 if a.dtype in ("f4", "c8") else 1e-11
    np.testing.assert_allclose(got.astype(wanted.dtype), wanted, rtol=rounding, atol=rounding * len(a))
    np.testing.assert_array_equal(got, np.conj(np.swapaxes(got, -1, -2)))


@pytest.mark.parametrize("dtype", [*DTYPES, BFLOAT16], ids=str)
@pytest.mark.parametrize("side", ["left", "right"])
def test_values(dtype: Any, side: Any) -> None:
    for shape in ((30, 20), (20, 30), (2, 3, 9, 7), (1, 5), (5, 1)):
        a = values(shape, dtype)
        assert_gram(run(gram, open_store(a), side=side), a, side)
        assert_gram(run(gram, open_store(np.asfortranarray(a)), side=side), a, side)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("out", [None, *SUFFIXES])
def test_any_store_to_any_store(place: str, out: str | None, tmp_path: Path) -> None:
    for dtype in map(np.dtype, ("f2", "f8", "c8")):
        a = values((130, 150), dtype)
        store = PLACES[place](tmp_path / str(dtype), a)
        target = None if out is None else tmp_path / f"out{dtype}{SUFFIXES[out]}"
        for side in ("left", "right"):
            assert_gram(run(gram, store, target, side=side, extra_bytes=1 << 18), a, side)


@given(
    depth=st.integers(0, 300),
    size=st.integers(0, 300),
    extra=st.integers(0, 1 << 21),
    dtype=st.sampled_from(["f4", "c16"]),
)
def test_any_shape_in_any_budget(depth: int, size: int, extra: int, dtype: str) -> None:
    a = values((depth, size), dtype)
    assert_gram(run(gram, open_store(a), np.empty((size, size), dtype), extra_bytes=extra), a, "left")


def test_one_triangle_is_computed(tmp_path: Path) -> None:
    a = PLACES["npy"](tmp_path / "a", values((400, 512), "f4"))
    target = tmp_path / "out.npy"
    plan = plan_gram_of(a, target, device=CPU, budget_bytes=smallest_budget(gram, a, target) + (1 << 18))
    tiles = [step.write.region for step in plan.steps() if step.last]
    assert len(tiles) > 3
    covered = np.zeros((512, 512), int)
    for rows, cols in tiles:
        assert rows.start <= cols.start
        covered[rows, cols] += 1
        if rows != cols:
            covered[cols, rows] += 1
    assert (covered == 1).all()
    assert plan.forecast.bytes_written == 512 * 512 * 4


def test_a_matrix_with_few_columns_is_read_once() -> None:
    f4 = np.dtype("f4")
    problem = GramProblem(
        Operand("A", (1 << 22, 256), f4, f4), Operand("G", (256, 256), f4, f4, "ram", in_place=True)
    )
    plan = plan_gram(problem, PlanLimits(32 << 20), CostModel())
    assert plan.moved_bytes == problem.a.nbytes
    assert plan.schedule == "single tile"


def test_less_is_moved_than_by_a_product_of_the_same_size() -> None:
    shape, f4 = (16384, 16384), np.dtype("f4")
    a, b, c = (Operand(name, shape, f4, f4) for name in "ABC")
    plan = plan_gram(GramProblem(a, c), PlanLimits(200 << 20), CostModel())
    product = plan_matmul(MatmulProblem(a, b, c), PlanLimits(200 << 20), CostModel())
    assert plan.moved_bytes < 0.8 * product.moved_bytes
    assert plan.forecast.compute_s < 0.6 * product.forecast.compute_s
    assert plan.forecast.peak_pool_bytes <= 200 << 20


def test_the_smallest_budget_is_exact(tmp_path: Path) -> None:
    a = PLACES["npy"](tmp_path / "a", values((500, 400), "c8"))
    target = tmp_path / "out.npy"
    needed = smallest_budget(gram, a, target)
    gram(a, target, device=CPU, budget_bytes=needed)
    with pytest.raises(BudgetExceededError) as refusal:
        gram(a, target, device=CPU, budget_bytes=needed - 1)
    assert refusal.value.needed_bytes == needed


def test_a_given_result_in_fortran_order() -> None:
    a = values((50, 40), "c16")
    out = np.empty((40, 40), "c16", order="F")
    gram(open_store(a), out, device=CPU)
    assert_gram(out, a, "left")


def test_mirrored_stores_count_both_writes() -> None:
    base = np.zeros((6, 6), "c8")
    mirrored = Mirrored(open_store(base))
    block = values((2, 3), "c8")
    assert mirrored.write((slice(0, 2), slice(3, 6)), block) == 2 * block.nbytes
    np.testing.assert_array_equal(base[3:6, 0:2], block.conj().T)
    assert mirrored.write((slice(2, 4), slice(2, 4)), block[:, :2]) == block[:, :2].nbytes


@pytest.mark.parametrize(
    ("a", "side", "error"),
    [
        (np.ones(3), "left", ShapeError),
        (np.ones((3, 3), bool), "left", DTypeError),
        (np.ones((3, 3)), "both", ShapeError),
    ],
)
def test_what_has_no_gram_matrix(a: Any, side: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"\[gram\]"):
        gram(open_store(a), side=side, device=CPU)
