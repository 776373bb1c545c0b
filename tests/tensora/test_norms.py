"""Norms and deviations of extreme, zero, infinite and NaN elements, compared with PyTorch in float64."""

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import accelera.tensora as ts

torch = pytest.importorskip("torch")
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
    values=arrays.arrays("float64", st.integers(1, 6), elements=st.floats(0.25, 4.0)),
    exponent=st.integers(-120, 120),
    order=st.sampled_from([*ORDERS, 100, -100]),
    data=st.data(),
)
def test_vector_norms_scale_with_their_elements(values, exponent, order, data):
    values = (values * data.draw(st.sampled_from([1.0, -1.0]))).astype("float32").astype("float64")
    scaled = values * 2.0**exponent
    got = _value_and_gradient(ts, _norms(order)[0], scaled, "float32")
    base = _value_and_gradient(torch, _norms(order)[1], values, "float64")
    assume(1e-38 < base[0] * 2.0**exponent < 1e38)
    np.testing.assert_allclose(got[0], base[0] * 2.0**exponent, rtol=2e-4)
    np.testing.assert_allclose(got[1], base[1], rtol=2e-3, atol=1e-6 * np.abs(base[1]).max())


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


@pytest.mark.parametrize("exponent", [-600, -450, 450, 510])
def test_norms_of_extreme_float64_values(exponent):
    values = np.array([[3.0, -4.0], [0.0, 12.0]]) * 2.0**exponent
    x = ts.tensor(values)
    assert (ts.linalg.vector_norm(x) / 2.0**exponent).item() == pytest.approx(13.0)
    assert (ts.linalg.matrix_norm(x) / 2.0**exponent).item() == pytest.approx(13.0)
    assert (ts.std(x, axis=1) / 2.0**exponent).tolist() == pytest.approx([3.5, 6.0])


@pytest.mark.parametrize("scale", [1e-30, 1e-22, 1e19, 1e30])
def test_distances_and_correlations_of_extreme_values(scale):
    values = np.array([[3.0, -4.0, 1.0], [1.0, 0.5, 2.0], [0.0, 2.0, -1.0]]).astype("float32")
    x, y = ts.tensor(values * np.float32(scale)), torch.tensor(values, dtype=torch.float64)
    np.testing.assert_allclose(ts.dist(x, x * 0.5).item() / scale, torch.dist(y, y * 0.5).item(), rtol=1e-5)
    expected = torch.cdist(y, y * 0.5, compute_mode="donot_use_mm_for_euclid_dist").numpy()
    np.testing.assert_allclose(np.asarray(ts.cdist(x, x * 0.5)) / np.float32(scale), expected, rtol=1e-5)
    np.testing.assert_allclose(np.asarray(ts.corrcoef(x)), torch.corrcoef(y).numpy(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        np.asarray(ts.linalg.matrix_norm(x)) / scale, torch.linalg.matrix_norm(y).numpy(), rtol=1e-5
    )


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
