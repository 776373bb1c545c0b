"""Sums, means and running sums of many float32 and half numbers, against exact ones.

Equal numbers are the hard case: their rounding errors all have one sign, and random numbers never show it.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import accelera.tensora as ts

LAYOUTS = ["whole", "rows", "columns", "strided", "middle"]


def _laid_out(numbers: np.ndarray, layout: str) -> tuple[ts.Tensor, int | None]:
    """Return a tensor whose lines along the axis are `numbers`, and the axis."""
    if layout == "whole":
        return ts.tensor(numbers), None
    if layout == "rows":
        return ts.tensor(np.stack([numbers] * 3)), 1
    if layout == "columns":
        return ts.tensor(np.stack([numbers] * 3, 1)), 0
    if layout == "strided":
        return ts.tensor(np.repeat(numbers, 2))[::2], 0
    return ts.tensor(np.stack([np.stack([numbers] * 2, 1)] * 2)), 1


def _units(found: np.ndarray, exact: float, dtype: type) -> float:
    return float(np.max(np.abs(found.astype(np.float64) - exact)) / float(np.spacing(dtype(abs(exact)))))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("value", "count"), [(0.3, 700_000), (1 / 3, 99_999), (-0.7, 262_144), (1e-30, 5000)]
)
def test_sums_of_equal_float32_numbers(value, count, layout):
    numbers = np.full(count, value, np.float32)
    exact = float(numbers[0]) * count
    x, axis = _laid_out(numbers, layout)
    assert _units(np.asarray(ts.sum(x, axis=axis)), exact, np.float32) <= 1
    assert _units(np.asarray(ts.mean(x, axis=axis)), exact / count, np.float32) <= 2
    assert _units(np.asarray(ts.sum(x, axis=axis, keepdims=True)), exact, np.float32) <= 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sums_of_numbers_that_cancel(layout):
    rng = np.random.default_rng(5)
    half = rng.standard_normal(20_000).astype(np.float32) * 1e6
    numbers = np.concatenate([half, -half, np.ones(7, np.float32)])
    x, axis = _laid_out(rng.permutation(numbers), layout)
    np.testing.assert_allclose(np.asarray(ts.sum(x, axis=axis)), 7.0, rtol=1e-4)


@pytest.mark.parametrize("name", ["var", "std", "vector_norm", "logsumexp", "nansum", "nanmean", "trapezoid"])
@pytest.mark.parametrize("layout", ["whole", "rows", "columns"])
def test_statistics_of_float32_numbers(name, layout):
    numbers = np.linspace(0.1, 0.9, 300_000).astype(np.float32)
    x, axis = _laid_out(numbers, layout)
    wide = numbers.astype(np.float64)
    exact = {
        "var": lambda: wide.var(),
        "std": lambda: wide.std(),
        "vector_norm": lambda: np.sqrt(np.square(wide).sum()),
        "logsumexp": lambda: np.log(np.exp(wide).sum()),
        "nansum": lambda: wide.sum(),
        "nanmean": lambda: wide.mean(),
        "trapezoid": lambda: (wide[1:] + wide[:-1]).sum() / 2,
    }[name]()
    function = ts.linalg.vector_norm if name == "vector_norm" else getattr(ts, name)
    found = function(x, axis=-1 if name == "trapezoid" and axis is None else axis)
    np.testing.assert_allclose(np.asarray(found), exact, rtol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "value", "count"),
    [("float32", 0.3, 400_000), ("float16", 0.01, 50_000), ("bfloat16", 0.01, 20_000)],
)
@pytest.mark.parametrize("layout", ["whole", "rows", "columns", "middle"])
def test_running_sums_keep_double_totals(dtype, value, count, layout):
    x, axis = _laid_out(np.full(count, value, np.float32), layout)
    x = x.to(dtype)
    found = ts.cumulative_sum(x, axis=0 if axis is None else axis).to(ts.float64)
    element = x.to(ts.float64)[(0,) * x.ndim].item()
    exact = element * np.arange(1, count + 1)
    shape = [1] * x.ndim
    shape[0 if axis is None else axis] = count
    expected = np.broadcast_to(exact.reshape(shape), x.shape)
    np.testing.assert_allclose(np.asarray(found), expected, rtol=float(ts.finfo(x.dtype).eps))


def test_running_products_keep_double_totals():
    factors = np.full(300_000, np.float32(1 - 3e-7))
    exact = np.exp(np.arange(1, factors.size + 1) * math.log(float(factors[0])))
    np.testing.assert_allclose(np.asarray(ts.cumulative_prod(ts.tensor(factors))), exact, rtol=1e-6)
    twins = ts.cumulative_prod(ts.tensor(np.stack([factors, factors], 1)), axis=0)
    np.testing.assert_allclose(np.asarray(twins[:, 1]), exact, rtol=1e-6)


def test_gradient_of_running_sums_is_as_precise():
    x = ts.full((300_000,), 0.5).requires_grad_()
    (ts.cumulative_sum(x, axis=0) * 0.3).sum().backward()
    weight = float(np.float32(0.3))
    exact = weight * np.arange(x.size, 0, -1)
    np.testing.assert_allclose(np.asarray(x.grad), exact, rtol=3e-7)


def test_running_sums_of_integers_and_bools():
    bools = np.random.default_rng(2).random((50, 7)) < 0.5
    np.testing.assert_array_equal(np.asarray(ts.cumulative_sum(ts.tensor(bools), axis=0)), bools.cumsum(0))
    large = np.full(9, 2**60, np.int64)
    np.testing.assert_array_equal(np.asarray(ts.cumulative_sum(ts.tensor(large))), large.cumsum())
