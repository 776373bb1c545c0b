"""Quantiles and medians of data with NaN, of long axes and of each floating-point type."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import accelera.tensora as ts

NAN = float("nan")
VALUES = st.sampled_from([NAN, 0.0, -1.5, 2.0, 7.25, 1e30, -1e-30])
SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 5))


@settings(max_examples=80)
@given(
    values=arrays.arrays("float64", SHAPES, elements=VALUES),
    dtype=st.sampled_from(["float32", "float64"]),
    level=st.sampled_from([0.0, 0.25, 0.5, 0.9, 1.0, [0.0, 0.5, 1.0]]),
    axis=st.sampled_from([None, 0, 1, -1]),
    name=st.sampled_from(["quantile", "nanquantile"]),
)
def test_quantiles_with_nan_match_numpy(values, dtype, level, axis, name):
    values = values.astype(dtype)
    got = getattr(ts, name)(ts.tensor(values), level, axis=axis)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # lines of NaN alone
        expected = getattr(np, name)(values, level, axis=axis)
    np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["quantile", "nanquantile"])
@pytest.mark.parametrize("has_nan", [True, False])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("count", [300, 2047, 2050, 5001])
@pytest.mark.parametrize("interpolation", ["linear", "lower", "higher", "midpoint", "nearest"])
def test_quantiles_of_long_axes(name, has_nan, dtype, count, interpolation):
    ramp = (np.arange(count) * 64) // count
    x = ts.tensor(ramp.tolist(), dtype=dtype)
    if has_nan:
        x = ts.concat([x, ts.full((1,), NAN, dtype=dtype)])
    got = [getattr(ts, name)(x, level, interpolation=interpolation).item() for level in (0.0, 0.5, 1.0)]
    if has_nan and name == "quantile":
        assert np.isnan(got).all()
    else:
        expected = np.quantile(ramp, [0.0, 0.5, 1.0], method=interpolation)
        np.testing.assert_allclose(got, expected, atol=1e-6)


@pytest.mark.parametrize("name", ["quantile", "nanquantile"])
@pytest.mark.parametrize("level", [NAN, -0.1, 1.5, [0.5, NAN]])
def test_quantile_levels_outside_of_the_range_are_refused(name, level):
    with pytest.raises(ValueError, match="q must be a number or a vector of numbers from 0 to 1"):
        getattr(ts, name)(ts.tensor([1.0, NAN, 3.0]), level)


@pytest.mark.parametrize("name", ["quantile", "nanquantile"])
def test_quantile_refuses_integers_and_empty_axes(name):
    for dtype in ("int32", "int64", "bool"):
        with pytest.raises(TypeError, match=rf"\[quantile\] elements of type {dtype}"):
            getattr(ts, name)(ts.ones((3,), dtype=dtype), 0.5)
    for shape, axis in (((0,), None), ((0,), 0), ((3, 0), 1), ((0, 3), 0)):
        with pytest.raises(ValueError, match="has no element along the axis"):
            getattr(ts, name)(ts.ones(shape), 0.5, axis=axis)


@settings(max_examples=60)
@given(values=arrays.arrays("float64", SHAPES, elements=VALUES), axis=st.sampled_from([0, 1]))
def test_medians_with_nan_match_torch(values, axis):
    x, y = ts.tensor(values), torch.tensor(values)
    for name in ("median", "nanmedian"):
        ours, theirs = getattr(ts, name)(x, axis=axis), getattr(torch, name)(y, axis)
        np.testing.assert_array_equal(np.asarray(ours.values), theirs.values.numpy())
        np.testing.assert_array_equal(getattr(ts, name)(x).item(), getattr(torch, name)(y).item())
