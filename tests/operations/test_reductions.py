"""Reductions: values, types, axes and NaN as NumPy's, sums without growing error."""

from __future__ import annotations

import itertools
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from accelera.engine import lazy
from accelera.engine.reducers import ReductionPlace, rule
from accelera.errors import ShapeError, UnknownNameError
from tests.matmul.products import BFLOAT16, PLACES, values
from tests.operations.running import CPU, computed
from tests.planned import plan_evaluate

NAMES = ["sum", "mean", "var", "std", "min", "max", "prod", "any", "all", "argmin", "argmax"]
DTYPES = [np.dtype(name) for name in ("?", "i1", "u2", "i8", "u8", "f2", "f4", "f8", "c8", "c16")]


def random(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> np.ndarray[Any, Any]:
    if np.dtype(dtype) == np.bool_:
        return np.random.default_rng(seed).random(shape) < 0.5
    return values(shape, dtype, seed)


def reference(name: str, a: np.ndarray[Any, Any], **options: Any) -> np.ndarray[Any, Any]:
    """Return NumPy's result, sums in the widest type, in NumPy's type."""
    exact = name in ("min", "max", "argmin", "argmax", "any", "all") or a.dtype.kind in "biu"
    wide = a if exact else a.astype("c16" if a.dtype.kind == "c" else "f8")
    with np.errstate(all="ignore"):
        found = np.asarray(getattr(np, name)(wide, **options))
        dtype = np.asarray(getattr(np, name)(a[(slice(0, 1),) * a.ndim], **options)).dtype
        return found.astype(dtype)


def assert_same(got: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any]) -> None:
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    tolerance = {2: 2e-3, 4: 1e-6, 8: 1e-12, 16: 1e-12}.get(wanted.dtype.itemsize, 0)
    tolerance = 1e-6 if wanted.dtype == np.complex64 else tolerance
    np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_values_and_types(name: str) -> None:
    for dtype, (axis, keepdims) in itertools.product(DTYPES, [(None, False), (0, True), (1, False)]):
        a = random((9, 11), dtype)
        got = computed(getattr(lazy(a), name)(axis, keepdims=keepdims))
        assert_same(got, reference(name, a, axis=axis, keepdims=keepdims))


@given(
    shape=hnp.array_shapes(min_dims=1, max_dims=4, max_side=7),
    data=st.data(),
    name=st.sampled_from(NAMES[:9]),
    order=st.sampled_from("CF"),
)
def test_any_axes(shape: tuple[int, ...], data: st.DataObject, name: str, order: str) -> None:
    axes = st.lists(st.integers(-len(shape), len(shape) - 1), unique_by=lambda each: each % len(shape))
    axis: Any = data.draw(st.none() | st.integers(-len(shape), len(shape) - 1) | axes.map(tuple))
    keepdims = data.draw(st.booleans())
    a = np.asarray(random(shape, "f8"), order=order)  # type: ignore[call-overload]
    got = computed(getattr(lazy(a), name)(axis, keepdims=keepdims))
    assert_same(got, reference(name, a, axis=axis, keepdims=keepdims))


@given(shape=hnp.array_shapes(min_dims=1, max_dims=3, max_side=9), data=st.data())
def test_positions_of_extremes_with_ties_and_nan(shape: tuple[int, ...], data: st.DataObject) -> None:
    a = data.draw(hnp.arrays("f8", shape, elements=st.sampled_from([0.0, 1.0, -1.0, math.nan, math.inf])))
    axis = data.draw(st.none() | st.integers(0, len(shape) - 1))
    for name in ("argmin", "argmax"):
        np.testing.assert_array_equal(computed(getattr(lazy(a), name)(axis)), getattr(np, name)(a, axis))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_nan_and_infinity(name: str, axis: int | None) -> None:
    for bad in ([math.nan], [math.inf], [math.inf, -math.inf], [math.nan, math.inf]):
        a = random((8, 6), "f8")
        a[3, : len(bad)] = bad
        assert_same(computed(getattr(lazy(a), name)(axis)), reference(name, a, axis=axis))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("shape", "axis"), [((0, 3), 0), ((0, 3), 1), ((3, 0), 1), ((0,), None), ((2, 0), None)]
)
def test_of_nothing(name: str, shape: tuple[int, ...], axis: int | None) -> None:
    a = np.empty(shape, np.float32)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            wanted = getattr(np, name)(a, axis=axis)
    except ValueError:
        with pytest.raises(ShapeError):
            getattr(lazy(a), name)(axis)
    else:
        assert_same(computed(getattr(lazy(a), name)(axis)), np.asarray(wanted))


@pytest.mark.parametrize("order", [1, 2, math.inf])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_norms(order: float, axis: int | None) -> None:
    for dtype in map(np.dtype, ("i1", "f2", "f4", "f8", "c8", BFLOAT16)):
        a = random((31, 17), dtype)
        wide = a.astype("c16" if dtype.kind == "c" else "f8")
        wanted = np.linalg.norm(wide.ravel() if axis is None else wide, order, axis)
        got = computed(lazy(a).norm(order, axis))
        assert got.dtype == {"i1": np.float64, "c8": np.float32}.get(dtype.str[1:], dtype)
        rtol = {2: 1e-2, 4: 1e-6, 8: 1e-12}[got.dtype.itemsize]
        np.testing.assert_allclose(got.astype("f8"), wanted, rtol=rtol)
    large = np.full(10, 1e30, np.float32)
    assert computed(lazy(large).norm()) == np.float32(math.sqrt(10) * 1e30)
    with pytest.raises(UnknownNameError):
        lazy(large).norm(3)


def test_large_operands_in_many_tiles(tmp_path: Path) -> None:
    a = random((700, 900), "f4")
    for place in ("npy", "npy-f", "zarr"):
        x = lazy(PLACES[place](tmp_path / place, a))
        for name, axis in itertools.product(NAMES, [None, 0, 1]):
            assert_same(computed(getattr(x, name)(axis)), reference(name, a, axis=axis))
        got = computed(x.sum(0, keepdims=True), tmp_path / "out.npy", extra_bytes=1 << 20)
        assert_same(got, reference("sum", a, axis=0, keepdims=True))


def test_a_reduction_is_fused_and_reads_its_operands_once(tmp_path: Path) -> None:
    a, b = random((300, 400), "f4", 1), random((300, 400), "f4", 2)
    x, y = (lazy(PLACES["npy"](tmp_path / str(i), each)) for i, each in enumerate((a, b)))
    expr = ((x * y) ** 2 + x).sum(axis=0)
    plan = plan_evaluate(expr, device=CPU, budget_bytes=64 << 20)
    assert plan.moved_bytes == a.nbytes + b.nbytes
    np.testing.assert_allclose(computed(expr), ((a * b) ** 2 + a).astype("f8").sum(0), rtol=1e-5)


def test_sums_do_not_lose_what_a_longer_sum_would() -> None:
    a = np.full(1 << 22, 0.1)
    np.testing.assert_allclose(computed(lazy(a).sum()), math.fsum(a), rtol=2e-16)
    a = random((2_000, 500), "f8")
    least = np.abs(a).sum(0) * 5e-16
    assert (np.abs(computed(lazy(a).sum(0)) - [math.fsum(column) for column in a.T]) < least).all()
    halves = np.full(100_000, 0.25, np.float16)
    assert computed(lazy(halves).sum()) == 25_000


def test_variance_far_from_zero() -> None:
    a = random((100_000,), "f8") + 1e8
    np.testing.assert_allclose(computed(lazy(a).var()), a.var(), rtol=1e-6)
    np.testing.assert_allclose(computed(lazy(a).std(ddof=1)), a.std(ddof=1), rtol=1e-6)
    huge = np.array([1e200, 3e200])
    np.testing.assert_allclose(computed(lazy(huge).mean()), 2e200)


def test_results_do_not_depend_on_timing() -> None:
    a = random((500, 600), "f8")
    assert len({float(computed((lazy(a) * 1.1).sum())) for _ in range(5)}) == 1


@pytest.mark.parametrize("axis", [2, -3, (0, 0), (0, 5)])
def test_axes_that_are_not_there(axis: Any) -> None:
    with pytest.raises(ShapeError):
        lazy(np.ones((2, 3))).sum(axis)


def test_one_axis_for_positions() -> None:
    with pytest.raises(ShapeError):
        lazy(np.ones((2, 3))).argmin((0, 1))  # type: ignore[arg-type]


def test_bfloat16() -> None:
    a = random((50, 40), BFLOAT16)
    for name in ("sum", "mean", "std", "min", "max"):
        wanted = np.asarray(getattr(np, name)(a.astype("f8"), axis=0)).astype(BFLOAT16)
        got = computed(getattr(lazy(a), name)(0))
        assert got.dtype == BFLOAT16
        np.testing.assert_array_equal(got.view("u2"), wanted.view("u2"))


@given(cuts=st.lists(st.integers(1, 99), max_size=6), name=st.sampled_from(NAMES), seed=st.integers(0, 9))
def test_partial_states_join_in_any_cut(cuts: list[int], name: str, seed: int) -> None:
    a = np.round(random((100,), "f8", seed), 1)
    values_of = a.astype(bool) if name in ("any", "all") else a
    reducer = rule(name, values_of.dtype, values_of.dtype, 100, 0).reducer
    states = tuple(np.empty(1, dtype) for dtype in reducer.dtypes)
    reducer.begin(states)
    edges = sorted({0, 100, *cuts})
    for start, stop in itertools.pairwise(edges):
        reducer.merge(states, reducer.partial(values_of[start:stop], ReductionPlace((start,), (100,), (0,))))
    np.testing.assert_allclose(reducer.end(states)[0], getattr(np, name)(a), rtol=1e-12, atol=1e-14)
