"""Sorting, searching and sets against NumPy, with NaN, ties, other axes and types; gradients of sorting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import accelera.tensora as ts
from accelera.tensora import autograd

QUICK = settings(max_examples=100, deadline=None, derandomize=True)
TYPES = ["bool", "uint8", "uint64", "int16", "int64", "float16", "float32", "float64"]
SHAPES = hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=8)


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    """Few different values, so that there are ties; NaN and infinities among the floating-point ones."""
    dtype = np.dtype(draw(st.sampled_from(TYPES)))
    special = [np.nan, np.inf, -np.inf, -0.0] if dtype.kind == "f" else []
    return draw(
        hnp.arrays(dtype, draw(SHAPES), elements=st.sampled_from([0, 1, 3, *special]).map(dtype.type))
    )


@given(arrays(), st.data())
@QUICK
def test_sort_and_argsort(x: Any, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    order = ts.argsort(ts.asarray(x), axis=axis)
    np.testing.assert_array_equal(np.asarray(order), np.argsort(x, axis=axis, stable=True))
    np.testing.assert_array_equal(np.asarray(ts.sort(ts.asarray(x), axis=axis)), np.sort(x, axis=axis))


@given(hnp.arrays(np.int64, SHAPES, elements=st.integers(-3, 3)), st.data())
@QUICK
def test_descending_keeps_the_order_of_equals(x: Any, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    order = ts.argsort(ts.asarray(x), axis=axis, descending=True)
    np.testing.assert_array_equal(np.asarray(order), np.argsort(-x, axis=axis, stable=True))


def test_nan_comes_last_either_way() -> None:
    x = ts.asarray([1.0, float("nan"), 2.0, float("nan"), 0.0])
    assert ts.argsort(x).tolist() == [4, 0, 2, 1, 3]
    assert ts.argsort(x, descending=True).tolist() == [2, 0, 4, 1, 3]
    assert ts.topk(x, 3).indices.tolist() == [2, 0, 4]


def test_long_lines_and_complex_numbers() -> None:
    x = np.random.default_rng(0).integers(0, 1000, (3, 40_000)).astype(np.float32)
    np.testing.assert_array_equal(np.asarray(ts.argsort(ts.asarray(x))), np.argsort(x, stable=True))
    z = np.random.default_rng(1).integers(0, 3, (50, 2)).astype(float)
    z = z[:, 0] + 1j * z[:, 1]
    np.testing.assert_array_equal(np.asarray(ts.sort(ts.asarray(z))), np.sort(z))


@given(
    hnp.arrays(np.float32, SHAPES, elements=st.sampled_from([-1.0, 0.0, 1.0, 2.0])), st.booleans(), st.data()
)
@QUICK
def test_topk_is_the_beginning_of_a_sort(x: Any, largest: bool, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    k = data.draw(st.integers(0, x.shape[axis]))
    found = ts.topk(ts.asarray(x), k, axis=axis, largest=largest)
    order = np.argsort(-x if largest else x, axis=axis, stable=True).take(range(k), axis)
    np.testing.assert_array_equal(np.asarray(found.indices), order)
    np.testing.assert_array_equal(np.asarray(found.values), np.take_along_axis(x, order, axis))


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@given(x=arrays(), data=st.data())
@QUICK
def test_extremes(name: str, x: Any, data: st.DataObject) -> None:
    axis = data.draw(st.none() | st.integers(-x.ndim, x.ndim - 1))
    keep = data.draw(st.booleans())
    found = getattr(ts, name)(ts.asarray(x), axis=axis, keepdims=keep)
    np.testing.assert_array_equal(np.asarray(found), getattr(np, name)(x, axis=axis, keepdims=keep))


@given(
    hnp.arrays(np.float64, st.integers(0, 9), elements=st.sampled_from([0.0, 1.0, 2.0, np.nan])), st.data()
)
@QUICK
def test_searchsorted(x: Any, data: st.DataObject) -> None:
    x.sort()
    side: Any = data.draw(st.sampled_from(["left", "right"]))
    values = data.draw(
        hnp.arrays(np.float32, (2, 3), elements=st.sampled_from([-1.0, 0.0, 1.5, 2.0, np.nan]))
    )
    found = ts.searchsorted(ts.asarray(x), ts.asarray(values), side=side)
    np.testing.assert_array_equal(np.asarray(found), np.searchsorted(x, values, side=side))


@given(arrays())
@QUICK
def test_unique(x: Any) -> None:
    found = ts.unique_all(ts.asarray(x))
    values, indices, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, equal_nan=False
    )
    for ours, theirs in zip(found, (values, indices, inverse.reshape(x.shape), counts), strict=True):
        np.testing.assert_array_equal(np.asarray(ours), theirs)
    np.testing.assert_array_equal(np.asarray(ts.unique_counts(ts.asarray(x)).counts), counts)


def test_wrong_arguments_are_refused() -> None:
    x = ts.zeros((2, 3))
    with pytest.raises(ValueError, match="4 elements of an axis with 3"):
        ts.topk(x, 4)
    with pytest.raises(IndexError, match="axis 2"):
        ts.argsort(x, axis=2)
    with pytest.raises(ValueError, match="no element"):
        ts.argmax(ts.zeros((0,)))
    with pytest.raises(ValueError, match="one for each line"):
        ts.searchsorted(x, x[0])
    with pytest.raises(IndexError, match="index 3"):
        ts.take(x, ts.asarray([3]), axis=1)


def test_gradients() -> None:
    x = ts.tensor(np.random.default_rng(0).normal(size=(3, 4)), requires_grad=True)
    for function in (
        lambda x: ts.sort(x, axis=0, descending=True) ** 2,
        lambda x: ts.topk(x, 2).values ** 2,
        lambda x: ts.unique_values(x) ** 2,
        lambda x: ts.take(x, ts.asarray([1, 1, 0]), axis=0) ** 2,
        lambda x: ts.take_along_axis(x, ts.argsort(x), axis=-1) ** 2,
    ):
        assert autograd.gradcheck(function, x)
        assert autograd.gradgradcheck(function, x)
