"""Quotients and remainders against NumPy and Python, and the law that joins them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import accelera.tensora as ts

TENTHS = [k / 10 for k in range(-60, 61)]
EXTREMES = [0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, -5e-324, 1e-45, -1e-310, 1e300, -1e300, 1e16]
VALUES = st.one_of(
    st.sampled_from([*TENTHS, *EXTREMES]),
    st.integers(-(10**6), 10**6).map(lambda k: k / 1000),
    st.floats(width=32),
    st.floats(),
)
FLOATS = [np.float16, np.float32, np.float64]


def _on_tensors(name: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.asarray(getattr(ts, name)(ts.asarray(x), ts.asarray(y)))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["floor_divide", "remainder", "fmod"])
def test_quotients_of_tenths_and_extremes(name, dtype):
    grid = np.array([*TENTHS, *EXTREMES])
    with np.errstate(all="ignore"):
        x, y = (part.ravel().astype(dtype) for part in np.meshgrid(grid, grid))
        expected = getattr(np, name)(x, y)
    got = _on_tensors(name, x, y)
    np.testing.assert_array_equal(got, expected)
    zeros = (expected == 0) & (y != 0)
    np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(expected[zeros]))


@pytest.mark.parametrize("dtype", FLOATS)
@given(pairs=st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=40))
def test_quotients_equal_numpy(dtype, pairs):
    with np.errstate(all="ignore"):
        x, y = (np.array(column).astype(dtype) for column in zip(*pairs, strict=True))
        expected = np.floor_divide(x, y)
    np.testing.assert_array_equal(_on_tensors("floor_divide", x, y), expected)
    single = ts.asarray(x[:1]) // dtype(y[0]).item()
    np.testing.assert_array_equal(np.asarray(single), expected[:1])


@given(x=st.floats(-1e6, 1e6), y=st.floats(1e-6, 1e6), sign=st.sampled_from([1, -1]))
def test_quotient_and_remainder_restore_the_dividend(x, y, sign):
    a, b = ts.tensor([x], dtype=ts.float64), ts.tensor([y * sign], dtype=ts.float64)
    q, r = (ts.floor_divide(a, b).item(), ts.remainder(a, b).item())
    assert (q, r) == divmod(x, y * sign)
    assert q * (y * sign) + r == pytest.approx(x, rel=1e-12, abs=1e-9)


def test_bfloat16_quotients_equal_pytorch():
    torch = pytest.importorskip("torch")
    grid = torch.tensor(TENTHS, dtype=torch.bfloat16)
    x, y = (part.reshape(-1) for part in torch.meshgrid(grid, grid[grid != 0], indexing="ij"))
    expected = torch.floor_divide(x.float(), y.float()).bfloat16().float().numpy()
    got = ts.floor_divide(ts.from_dlpack(x), ts.from_dlpack(y))
    np.testing.assert_array_equal(np.asarray(got.to(ts.float32)), expected)


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint64])
def test_integer_quotients_at_the_limits(dtype):
    limits = np.iinfo(dtype)
    values = np.unique(np.array([limits.min, limits.min + 1, 0, 1, 2, 7, limits.max - 1, limits.max], dtype))
    if limits.min < 0:
        values = np.append(values, np.array([-1, -2, -7], dtype))
    x, y = (part.ravel() for part in np.meshgrid(values, values))
    for name in ("floor_divide", "remainder", "fmod"):
        with np.errstate(all="ignore"):
            expected = getattr(np, name)(x, y)
        np.testing.assert_array_equal(_on_tensors(name, x, y), expected, name)


def test_gradient_of_remainder_uses_the_quotient():
    torch = pytest.importorskip("torch")
    x, y = np.array([1.0, -5.0, 6.0, 0.3]), np.array([0.1, 2.5, 0.1, -0.1])
    ours = [ts.tensor(v, requires_grad=True) for v in (x, y)]
    theirs = [torch.tensor(v, requires_grad=True) for v in (x, y)]
    ts.remainder(*ours).sum().backward()
    torch.remainder(*theirs).sum().backward()
    for mine, reference in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(np.asarray(mine.grad), reference.grad.numpy())
