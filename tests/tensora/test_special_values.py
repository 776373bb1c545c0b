"""Special functions of all magnitudes: they end quickly, with SciPy's values."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special as sp
from hypothesis import given
from hypothesis import strategies as st

import accelera.tensora as ts
from accelera.tensora import special
from tests.children import answer_of

MAGNITUDES = [0.0, 5e-324, 1e-310, 1e-300, 1e-45, 1e-20, 1e-8, 1e-3, 0.1, 0.25, 0.49, 0.5, 0.51, 0.9, 0.999]
MAGNITUDES += [1 - 2**-53, 1.0, 1.5, 2.0, 2.5, 3.0, 9.99, 10.5, 20.0, 36.0, 36.5, 100.0, 171.7, 700.0, 709.5]
MAGNITUDES += [712.0, 720.0, 1e4, 1e8, 1e16, 2e18, 1e30, 1e155, 1e300, 1.7e308, math.inf]
POINTS = np.array(
    [*MAGNITUDES, *(-size for size in MAGNITUDES), math.nan, -170.5, -1000.5, -4503599627370495.5]
)

UNARY: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "erf": (ts.erf, sp.erf),
    "erfc": (ts.erfc, sp.erfc),
    "erfinv": (ts.erfinv, sp.erfinv),
    "lgamma": (ts.lgamma, sp.gammaln),
    "digamma": (ts.digamma, sp.digamma),
    "i0": (ts.i0, sp.i0),
    "i0e": (special.i0e, sp.i0e),
    "i1": (special.i1, sp.i1),
    "i1e": (special.i1e, sp.i1e),
    "erfcx": (special.erfcx, sp.erfcx),
    "log_ndtr": (special.log_ndtr, sp.log_ndtr),
    "ndtr": (special.ndtr, sp.ndtr),
    "ndtri": (special.ndtri, sp.ndtri),
    "entr": (special.entr, sp.entr),
    "expm1": (ts.expm1, np.expm1),
    "log1p": (ts.log1p, np.log1p),
}
POLYNOMIALS = [name for name in special.__all__ if "polynomial" in name]


def _close(actual: Any, expected: Any, dtype: type, factor: float = 2000.0) -> Any:
    """Whether values are equal up to rounding, overflow and underflow of `dtype`."""
    info = np.finfo(dtype)
    with np.errstate(all="ignore"):
        near = np.abs(actual - expected) <= factor * info.eps * np.abs(expected) + 4 * float(
            info.smallest_subnormal
        )
    return (actual == expected) | (np.isnan(actual) & np.isnan(expected)) | near


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", UNARY)
def test_functions_of_all_magnitudes_equal_scipy(name, dtype):
    ours, reference = UNARY[name]
    with np.errstate(all="ignore"):
        x = POINTS.astype(dtype)
        start = time.monotonic()
        actual = np.asarray(ours(ts.asarray(x)))
        assert time.monotonic() - start < 1.0
        expected = reference(x.astype(np.float64)).astype(dtype)
    right = _close(actual, expected, dtype)
    if name == "lgamma":
        right |= np.abs(x - 1) < 1e-2  # SciPy loses the digits close to the zero
    if name == "digamma":
        right |= np.abs(x + 1) < 1e-15  # and close to poles
    assert right.all(), list(zip(x[~right], actual[~right], expected[~right], strict=True))


@given(x=st.floats(), y=st.floats())
def test_functions_of_any_numbers_end(x, y):
    for dtype in (ts.float32, ts.float64):
        a, b = ts.tensor([x], dtype=ts.float64).astype(dtype), ts.tensor([y], dtype=ts.float64).astype(dtype)
        start = time.monotonic()
        for ours, _ in UNARY.values():
            assert ours(a).shape == (1,)
        for binary in (special.zeta, special.gammainc, special.gammaincc, special.xlog1py, ts.logaddexp):
            assert binary(a, b).shape == (1,)
        for n in (0, 1, 2, 7, 170, 171, 10**9):
            assert special.polygamma(n, a).shape == (1,)
        for name in ("airy_ai", "bessel_j0", "bessel_y1", "modified_bessel_k0", "scaled_modified_bessel_k1"):
            assert getattr(special, name)(a).shape == (1,)
        assert time.monotonic() - start < 1.0


ORDERS = [
    1.0,
    1 + 1e-12,
    1.0001,
    1.5,
    2,
    3,
    10.5,
    50,
    1000,
    3e8,
    1e16,
    1e30,
    1e300,
    math.inf,
    0.5,
    0,
    -1,
    math.nan,
]
OFFSETS = [
    5e-324,
    1e-310,
    1e-10,
    0.1,
    0.5,
    0.999,
    1.0,
    1 + 2**-52,
    1.5,
    3.5,
    20.0,
    1e3,
    2e7,
    1e16,
    1e30,
    1e300,
]
OFFSETS += [math.inf, 0.0, -0.5, -1.0, -1.5, -2.25, -10.3, -1e30, -math.inf, math.nan]

ZETA_PROGRAM = """
import json, numpy as np, accelera.tensora as ts
from accelera.tensora import special
from tests.tensora.test_special_values import ORDERS, OFFSETS
grids = [part.ravel() for part in np.meshgrid(ORDERS, OFFSETS)]
results = [np.asarray(special.zeta(*(ts.asarray(part.astype(d)) for part in grids))) for d in ("f4", "f8")]
for n in (1, 2, 50, 171, 400, 10**9, 10**18):
    results += [np.asarray(special.polygamma(n, ts.asarray(np.array(OFFSETS, d)))) for d in ("f4", "f8")]
print(json.dumps([part.astype(float).tolist() for part in results]))
"""


def test_zeta_and_polygamma_of_all_magnitudes():
    start = time.monotonic()
    singles, doubles, *_ = answer_of("-c", ZETA_PROGRAM)
    assert time.monotonic() - start < 30.0
    s, q = (part.ravel() for part in np.meshgrid(ORDERS, OFFSETS))
    for actual, dtype in ((singles, np.float32), (doubles, np.float64)):
        with np.errstate(all="ignore"):
            a, b = s.astype(dtype), q.astype(dtype)
            expected = sp.zeta(a.astype(np.float64), b.astype(np.float64)).astype(dtype)
        # SciPy: inf - inf for large s and q above 1, and poles for a NaN.
        is_defined = ~np.isnan(expected) & ~np.isnan(a)
        right = _close(np.array(actual), expected, dtype) | ~is_defined
        assert right.all(), list(
            zip(a[~right], b[~right], np.array(actual)[~right], expected[~right], strict=True)
        )
        assert (np.array(actual)[(a > 1e15) & (b >= 1.5)] == 0).all()


@pytest.mark.parametrize("n", [1, 2, 3, 8, 50, 160, 170, 171, 172, 300])
def test_polygamma_where_factors_overflow(n):
    mpmath = pytest.importorskip("mpmath")
    x = np.array([0.25, 1.5, 20.0, 60.0, 150.0, 1000.0, 2e7])
    actual = np.asarray(special.polygamma(n, ts.asarray(x)))
    for value, place in zip(actual.tolist(), x.tolist(), strict=True):
        with mpmath.workdps(3000):  # digits count from the point: the zeta function may be small
            exact = (-1) ** (n + 1) * mpmath.factorial(n) * mpmath.zeta(n + 1, place)
        assert value == pytest.approx(float(exact), rel=1e-10, abs=1e-300)


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_degrees_of_polynomials_have_a_limit(name):
    x = ts.tensor([0.5, -0.25], dtype=ts.float64)
    polynomial = getattr(special, name)
    for degree in (10**7, 10**18, 1e30, math.inf):
        with pytest.raises(ValueError, match="degree"):
            polynomial(x, degree)
        with pytest.raises(ValueError, match="degree"):
            polynomial(x, ts.tensor([1.0, degree], dtype=ts.float64))
    assert np.isnan(np.asarray(polynomial(x, ts.tensor([math.nan] * 2, dtype=ts.float64)))).all()
    np.testing.assert_array_equal(np.asarray(polynomial(x, -3)), [0.0, 0.0])
    assert polynomial(x, 0).tolist() == [1.0, 1.0]
