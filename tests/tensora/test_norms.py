"""Norms and deviations of extreme, zero, infinite and NaN elements, compared with PyTorch in float64."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import accelera.tensora as ts

INF, NAN = float("inf"), float("nan")
ORDERS = [1, 1.5, 2, 2.5, 3, 4, 10, 0.5, 0.25, -0.5, -1, -2, -2.5, -3]
SMALL = st.floats(-4, 4)
POINTS = (0.0, -0.0, 1.0, -2.0, 1e6, 1e-6, INF, -INF, NAN)


def _value_and_gradient(module, function, values, dtype):
    kind = getattr(module, dtype)
    x = module.tensor(values.tolist(), dtype=kind, requires_grad=True)
    result = function(x)
    (result.sum() if result.ndim else result).backward()
    return np.asarray(result.detach()), np.asarray(x.grad)


def _norms(order):
    return (
        lambda x: ts.linalg.vector_norm(x, ord=order, axis=-1),
        lambda x: torch.linalg.vector_norm(x, order, dim=-1),
    )


@pytest.mark.parametrize(
    ("order", "dtype"),
    [
        *[(order, "float64") for order in ORDERS],
        *[(order, "float32") for order in ORDERS if abs(order) <= 4],  # powers of 10 exceed float32
    ],
)
def test_vector_norms_at_special_points(order, dtype):
    ours, theirs = _norms(order)
    for count in (2, 3):
        rows = np.array(list(itertools.product(POINTS, repeat=count)))
        rows = rows.astype(dtype).astype("float64")
        got = _value_and_gradient(ts, ours, rows, dtype)
        expected = _value_and_gradient(torch, theirs, rows, "float64")
        np.testing.assert_allclose(got[0], expected[0], rtol=1e-5)
        if order == 1:  # the gradient of a NaN element is NaN here, and 0 in PyTorch
            got[1][np.isnan(rows)] = expected[1][np.isnan(rows)] = 0
        with np.errstate(over="ignore"):
            np.testing.assert_allclose(got[1], expected[1].astype(dtype), rtol=1e-5, atol=1e-37)


@pytest.mark.parametrize("order", [*ORDERS, INF, -INF, 100, -100])
def test_vector_norms_do_not_hide_nan(order):
    for values in ([0.0, NAN], [NAN, 0.0], [1.0, NAN, INF], [NAN], [0.0, 0.0, NAN, 2.0]):
        assert np.isnan(ts.linalg.vector_norm(ts.tensor(values), ord=order).item())


@settings(max_examples=60)
@given(
    values=arrays.arrays(
        "float64", st.tuples(st.integers(1, 3), st.integers(2, 6)), elements=st.floats(-4, 4)
    ),
    exponent=st.integers(-110, 118),
    offset=st.sampled_from([0.0, 1.0, 16.0]),
    correction=st.sampled_from([0, 1]),
)
def test_std_of_extreme_float32_values(values, exponent, offset, correction):
    values = ((np.round(values * 64) / 64 + offset) * 2.0**exponent).astype("float32").astype("float64")
    assume((values.std(axis=1) > 0).all())
    got = _value_and_gradient(ts, lambda x: ts.std(x, axis=1, correction=correction), values, "float32")
    expected = _value_and_gradient(torch, lambda x: torch.std(x, 1, correction=correction), values, "float64")
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-4)
    np.testing.assert_allclose(got[1], expected[1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("order", [0.5, 1, 2, 3, -1])
def test_half_precision_norms_do_not_overflow(dtype, order):
    x = ts.full((4,), 300.0, dtype=dtype)
    result = ts.linalg.vector_norm(x, ord=order)
    assert result.dtype == x.dtype
    assert result.item() == pytest.approx(300.0 * 4 ** (1 / order), rel=1e-2)
    assert ts.linalg.matrix_norm(ts.reshape(x, (2, 2))).item() == pytest.approx(600.0, rel=1e-2)


@pytest.mark.parametrize("axis", [None, 0, (0, 1)])
def test_count_of_nonzero_elements_has_zero_gradients(axis):
    x = ts.tensor([[0.0, 2.0], [3.0, 0.0]], requires_grad=True)
    count = ts.linalg.vector_norm(x, ord=0, axis=axis)
    ts.sum(count).backward()
    assert ts.sum(count).item() == 2.0
    assert not np.asarray(x.grad).any()
