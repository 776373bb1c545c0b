"""Copies and transposes: any store to any store, types converted with one rounding, nothing wrapped."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from accelera.engine import lazy
from accelera.errors import DTypeError, ShapeError
from accelera.plan._internal import CostModel, ElementwiseProblem, Operand, PlanLimits, plan_elementwise
from accelera.stores import open_store
from tests.matmul.products import BFLOAT16, PLACES, SUFFIXES, can_hold, values
from tests.operations.running import CPU, run
from tests.planned import copy, plan_evaluate, transpose

MIB = 1 << 20


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("out", SUFFIXES)
def test_any_store_to_any_store(place: str, out: str, tmp_path: Path) -> None:
    for dtype in map(np.dtype, ("f4", "f8", "c8", "i2", "u8", BFLOAT16)):
        if not can_hold(place, dtype) or not can_hold(out, dtype):
            continue
        a = values((70, 90), dtype)
        store = PLACES[place](tmp_path / str(dtype), a)
        got = run(copy, store, tmp_path / f"out{dtype}{SUFFIXES[out]}")
        np.testing.assert_array_equal(got.view("u1"), a.view("u1"))
        got = run(transpose, store, None, tmp_path / f"out{dtype}T{SUFFIXES[out]}")
        np.testing.assert_array_equal(got, a.T)


@pytest.mark.parametrize("source", ["f8", "f4", "f2", BFLOAT16, "i8", "i4", "u1", "?"], ids=str)
@pytest.mark.parametrize("target", ["c16", "f8", "f4", "f2", BFLOAT16], ids=str)
def test_conversions_round_once(source: Any, target: Any) -> None:
    source, target = np.dtype(source), np.dtype(target)
    a = values((40, 50), "f8") > 0 if source == np.bool_ else values((40, 50), source)
    got = run(copy, open_store(a), None, target)
    assert got.dtype == target
    if target == BFLOAT16:
        wanted = nearest_bfloat16(a.astype("f8"))
        np.testing.assert_array_equal(got.astype("f8"), wanted)
    else:
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(
                got, a.astype("f4").astype(target) if source == BFLOAT16 else a.astype(target)
            )


def nearest_bfloat16(exact: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return float64 numbers rounded to 8 significant bits, ties to even."""
    fraction, exponent = np.frexp(exact)
    return np.ldexp(np.rint(np.ldexp(fraction, 8)), exponent - 8)


@pytest.mark.parametrize(("source", "target"), [("f4", "i4"), ("c8", "f4"), ("i4", "?"), ("f8", "?")])
def test_what_loses_more_than_precision_is_refused(source: str, target: str, tmp_path: Path) -> None:
    with pytest.raises(DTypeError, match="precision"):
        copy(values((3, 3), source), tmp_path / "out.npy", target, device=CPU)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("source", "target"), list(itertools.permutations(["i1", "u1", "i8", "u8", "i4"], 2))
)
def test_integers_that_do_not_fit_are_refused(source: str, target: str, tmp_path: Path) -> None:
    limits, narrow = np.iinfo(source), np.iinfo(target)
    fitting = np.array([max(limits.min, narrow.min), min(limits.max, narrow.max)], source)
    np.testing.assert_array_equal(run(copy, fitting, None, target), fitting)
    for edge, outside in ((limits.max, limits.max > narrow.max), (limits.min, limits.min < narrow.min)):
        if outside:
            with pytest.raises(DTypeError, match=f"{edge} does not fit {np.dtype(target)}"):
                copy(np.array([0, edge], source), tmp_path / "out.npy", target, device=CPU)
    assert not list(tmp_path.iterdir())


@given(shape=hnp.array_shapes(max_dims=4, max_side=8), data=st.data())
def test_any_axes(shape: tuple[int, ...], data: st.DataObject) -> None:
    axes = data.draw(st.none() | st.permutations(range(len(shape))))
    a = values(shape, "f4")
    np.testing.assert_array_equal(run(transpose, a, axes), a.transpose(axes))


def test_axes_that_are_not_there() -> None:
    with pytest.raises(ShapeError):
        transpose(np.ones((2, 3)), (0, 0), device=CPU)


def test_a_long_way_through_all_formats(tmp_path: Path) -> None:
    a = values((300, 200), "f4")
    paths = [
        tmp_path / f"out{i}{suffix}" for i, suffix in enumerate((".npy", ".zarr", ".safetensors", ".npy"))
    ]
    np.save(paths[0], a)
    for source, target in itertools.pairwise(paths):
        run(copy, open_store(source), target)
    np.testing.assert_array_equal(np.load(paths[-1]), a)


def test_a_transpose_reads_and_writes_in_long_runs() -> None:
    f4 = np.dtype("f4")
    problem = ElementwiseProblem(
        "transpose",
        (16384, 16384),
        (Operand("A", (16384, 16384), f4, f4, order=(1, 0)),),
        Operand("out", (16384, 16384), f4, f4),
    )
    plan = plan_elementwise(problem, PlanLimits(256 * MIB), CostModel())
    step = next(plan.steps())
    assert min(step.reads[0].run_bytes, step.write.run_bytes) >= 8 << 10
    assert plan.moved_bytes == 2 * problem.result.nbytes
    assert plan.forecast.peak_pool_bytes <= 256 * MIB


def test_tiles_follow_the_chunks_of_a_chunked_result(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((4000, 3000), "f4"))
    plan = plan_evaluate(lazy(tmp_path / "a.npy"), tmp_path / "b.zarr", device=CPU, budget_bytes=200 * MIB)
    chunk = plan.operands[-1].chunk
    assert chunk is not None
    for step in plan.steps():
        assert all(part.start % size == 0 for part, size in zip(step.write.region, chunk, strict=True))
