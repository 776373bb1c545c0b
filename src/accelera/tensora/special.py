"""Special functions: Bessel, zeta, gamma, normal distribution, orthogonal polynomials; PyTorch's `special`.

Those with gradients are entries of the op table or made of them. The others, which say so, are SciPy's, in
float64, and have no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from accelera.errors import ArgumentError, DTypeError
from accelera.tensora import dtypes
from accelera.tensora.amp import computes_in
from accelera.tensora.core import Tensor, native
from accelera.tensora.typing import Scalar

__all__ = [
    "airy_ai",
    "bessel_j0",
    "bessel_j1",
    "bessel_y0",
    "bessel_y1",
    "chebyshev_polynomial_t",
    "chebyshev_polynomial_u",
    "chebyshev_polynomial_v",
    "chebyshev_polynomial_w",
    "entr",
    "erfcx",
    "gammainc",
    "gammaincc",
    "hermite_polynomial_h",
    "hermite_polynomial_he",
    "i0e",
    "i1",
    "i1e",
    "laguerre_polynomial_l",
    "legendre_polynomial_p",
    "log_ndtr",
    "modified_bessel_i0",
    "modified_bessel_i1",
    "modified_bessel_k0",
    "modified_bessel_k1",
    "multigammaln",
    "ndtr",
    "ndtri",
    "polygamma",
    "scaled_modified_bessel_k0",
    "scaled_modified_bessel_k1",
    "shifted_chebyshev_polynomial_t",
    "shifted_chebyshev_polynomial_u",
    "shifted_chebyshev_polynomial_v",
    "shifted_chebyshev_polynomial_w",
    "spherical_bessel_j0",
    "xlog1py",
    "zeta",
]

Unary = Callable[[Any], Any]
Binary = Callable[[Any, Any], Any]


# --- with gradients ---------------------------------------------------------------------------------------


@computes_in("inputs")
def entr(x: Tensor, /) -> Tensor:
    """``-x * log(x)``: 0 at 0, negative infinity for negative numbers."""
    is_negative, is_zero = native.less(x, 0), native.equal(x, 0)
    positive = native.where(native.logical_or(is_negative, is_zero), 1.0, x)
    finite = native.negative(native.multiply(positive, native.log(positive)))
    # Functions with these values whose gradients are infinity at 0 and NaN below.
    zero = native.sqrt(native.where(is_zero, native.add(x, 0.0), 1.0))
    vanishing = native.exp(native.multiply(native.where(is_negative, x, -1.0), math.inf))
    below = native.log(native.where(is_negative, vanishing, 1.0))
    return native.where(is_negative, below, native.where(is_zero, zero, finite))


def erfcx(x: Tensor, /) -> Tensor:
    """``exp(x**2) * erfc(x)``, without overflow."""
    return native.erfcx(x)


def i0e(x: Tensor, /) -> Tensor:
    """``exp(-abs(x))`` times the modified Bessel function of the first kind of order 0."""
    return native.i0e(x)


def i1(x: Tensor, /) -> Tensor:
    """Modified Bessel function of the first kind of order 1."""
    return native.i1(x)


def i1e(x: Tensor, /) -> Tensor:
    """``exp(-abs(x))`` times the modified Bessel function of the first kind of order 1."""
    return native.i1e(x)


def log_ndtr(x: Tensor, /) -> Tensor:
    """Logarithm of the normal distribution `ndtr`, without underflow."""
    return native.log_ndtr(x)


@computes_in("inputs")
def multigammaln(x: Tensor, p: int, /) -> Tensor:
    """Logarithm of the multivariate gamma function of dimension `p`, for x > (p - 1) / 2."""
    if p < 1:
        raise ArgumentError(f"[multigammaln] p={p}; give at least 1")
    places = native.cast(native.arange(p), x.dtype) * -0.5
    terms = native.lgamma(native.add(native.reshape(x, (*x.shape, 1)), places))
    return native.add(native.sum(terms, -1), p * (p - 1) / 4 * math.log(math.pi))


def ndtr(x: Tensor, /) -> Tensor:
    """Share of the normal distribution below x: ``erfc(-x / sqrt(2)) / 2``."""
    return native.multiply(native.erfc(native.multiply(x, -math.sqrt(0.5))), 0.5)


def ndtri(x: Tensor, /) -> Tensor:
    """Inverse of `ndtr`: the quantile of the normal distribution."""
    return native.ndtri(x)


def polygamma(n: int, x: Tensor, /) -> Tensor:
    """Return the `n`-th derivative of `digamma`, for n = 0, 1, ..."""
    if n < 0:
        raise ArgumentError(f"[polygamma] n={n}; give 0 or more")
    return native.polygamma(float(n), x)


@computes_in("inputs")
def xlog1py(x1: Tensor | Scalar, x2: Tensor | Scalar, /) -> Tensor:
    """``x1 * log1p(x2)``, 0 where x1 is 0 and x2 is not NaN."""
    kind = dtypes.result_type(x1, x2)
    a, b = (x if isinstance(x, Tensor) else native.asarray(x, kind) for x in (x1, x2))
    # At the ends of the domain xlogy has the limits of value and gradients, which are those of PyTorch.
    undefined = native.logical_or(native.less_equal(b, -1), native.equal(b, math.inf))
    nothing = native.logical_and(native.equal(a, 0), undefined)
    ends = native.xlogy(native.where(nothing, a, 1.0), native.add(native.where(nothing, b, 0.0), 1.0))
    return native.where(nothing, ends, native.multiply(a, native.log1p(native.where(nothing, 0.0, b))))


def zeta(x: Tensor, q: Tensor, /) -> Tensor:
    """Zeta function of Hurwitz: sum of ``(q + k)**-x`` over k = 0, 1, ...; only `q` has a gradient."""
    return native.zeta(x, q)


# --- by SciPy ---------------------------------------------------------------------------------------------


def _call_scipy(compute: Callable[..., Any], *given: Any) -> Tensor:
    """Call a SciPy function in float64; return the result in the common type of the arguments.

    Raises
    ------
    TypeError
        If an argument is complex.

    """
    import scipy.special  # it takes longer to import than the rest of the library

    kind = dtypes.result_type(*given)
    wanted = kind if kind in dtypes.KINDS["real floating"] else dtypes.default_dtype()
    if kind in dtypes.KINDS["complex floating"]:
        raise DTypeError(f"[special] not defined for {kind.name}")
    arrays = [
        np.asarray(native.cast(x.detach().cpu(), dtypes.float64)) if isinstance(x, Tensor) else x
        for x in given
    ]
    with np.errstate(all="ignore"):
        found = np.array(compute(scipy.special, *arrays), dtype=np.float64, order="C")
    return native.cast(native.from_buffer(found), wanted)


def _scipy_unary(doc: str, compute: Callable[[Any, Any], Any]) -> Unary:
    def function(x: Tensor, /) -> Tensor:
        return _call_scipy(compute, x)

    function.__doc__ = f"{doc}. Without gradient."
    return function


def _scipy_binary(doc: str, compute: Callable[[Any, Any, Any], Any]) -> Binary:
    def function(x1: Any, x2: Any, /) -> Tensor:
        return _call_scipy(compute, x1, x2)

    function.__doc__ = f"{doc}. Without gradient."
    return function


airy_ai = _scipy_unary("Airy function Ai", lambda sp, x: sp.airy(x)[0])
bessel_j0 = _scipy_unary("Bessel function of the first kind of order 0", lambda sp, x: sp.j0(x))
bessel_j1 = _scipy_unary("Bessel function of the first kind of order 1", lambda sp, x: sp.j1(x))
bessel_y0 = _scipy_unary("Bessel function of the second kind of order 0", lambda sp, x: sp.y0(x))
bessel_y1 = _scipy_unary("Bessel function of the second kind of order 1", lambda sp, x: sp.y1(x))
gammainc = _scipy_binary("Regularised lower incomplete gamma function", lambda sp, a, x: sp.gammainc(a, x))
gammaincc = _scipy_binary("Regularised upper incomplete gamma function", lambda sp, a, x: sp.gammaincc(a, x))
modified_bessel_i0 = _scipy_unary(
    "Modified Bessel function of the first kind of order 0", lambda sp, x: sp.i0(x)
)
modified_bessel_i1 = _scipy_unary(
    "Modified Bessel function of the first kind of order 1", lambda sp, x: sp.i1(x)
)
modified_bessel_k0 = _scipy_unary(
    "Modified Bessel function of the second kind of order 0", lambda sp, x: sp.k0(x)
)
modified_bessel_k1 = _scipy_unary(
    "Modified Bessel function of the second kind of order 1", lambda sp, x: sp.k1(x)
)
scaled_modified_bessel_k0 = _scipy_unary("exp(x) times `modified_bessel_k0`", lambda sp, x: sp.k0e(x))
scaled_modified_bessel_k1 = _scipy_unary("exp(x) times `modified_bessel_k1`", lambda sp, x: sp.k1e(x))
spherical_bessel_j0 = _scipy_unary(
    "Spherical Bessel function of order 0, sin(x) / x", lambda sp, x: np.sinc(x / math.pi)
)


# --- orthogonal polynomials -------------------------------------------------------------------------------


LARGEST_DEGREE = 10**6
"""Limit of degrees: SciPy's recurrences over the degree cannot be interrupted."""


def _polynomial(doc: str, compute: Callable[[Any, Any, Any], Any]) -> Binary:
    """Return a function of x and a degree n: n is truncated to an integer, and a negative n gives 0."""

    def degrees(sp: Any, x: Tensor, n: Any) -> Any:
        degree = np.trunc(np.asarray(n, np.float64))
        if np.any(degree > LARGEST_DEGREE):
            raise ArgumentError(
                f"[polynomial] degree {np.nanmax(degree):g} is too large; give at most {LARGEST_DEGREE:,}"
            )
        whole = np.where(degree > 0, degree, 0).astype(np.int64)
        values = np.where(degree < 0, 0.0, compute(sp, whole, np.asarray(x, np.float64)))
        return np.where(np.isnan(degree), np.nan, values)

    def function(x: Tensor, n: Any, /) -> Tensor:
        return _call_scipy(degrees, x, n)

    function.__doc__ = f"""{doc} of degree n, which is cut to an integer. Without gradient.

    Raises
    ------
    ValueError
        If a degree is larger than 1,000,000.

    """
    return function


def _chebyshev_v(sp: Any, n: Any, x: Tensor) -> Any:
    return sp.eval_chebyu(n, x) - np.where(n > 0, sp.eval_chebyu(np.maximum(n - 1, 0), x), 0)


def _chebyshev_w(sp: Any, n: Any, x: Tensor) -> Any:
    return sp.eval_chebyu(n, x) + np.where(n > 0, sp.eval_chebyu(np.maximum(n - 1, 0), x), 0)


chebyshev_polynomial_t = _polynomial(
    "Chebyshev polynomial of the first kind", lambda sp, n, x: sp.eval_chebyt(n, x)
)
chebyshev_polynomial_u = _polynomial(
    "Chebyshev polynomial of the second kind", lambda sp, n, x: sp.eval_chebyu(n, x)
)
chebyshev_polynomial_v = _polynomial("Chebyshev polynomial of the third kind", _chebyshev_v)
chebyshev_polynomial_w = _polynomial("Chebyshev polynomial of the fourth kind", _chebyshev_w)
hermite_polynomial_h = _polynomial(
    "Hermite polynomial of the physicists", lambda sp, n, x: sp.eval_hermite(n, x)
)
hermite_polynomial_he = _polynomial(
    "Hermite polynomial of probability theory", lambda sp, n, x: sp.eval_hermitenorm(n, x)
)
laguerre_polynomial_l = _polynomial("Laguerre polynomial", lambda sp, n, x: sp.eval_laguerre(n, x))
legendre_polynomial_p = _polynomial("Legendre polynomial", lambda sp, n, x: sp.eval_legendre(n, x))
shifted_chebyshev_polynomial_t = _polynomial(
    "Chebyshev polynomial of the first kind in 2 x - 1", lambda sp, n, x: sp.eval_sh_chebyt(n, x)
)
shifted_chebyshev_polynomial_u = _polynomial(
    "Chebyshev polynomial of the second kind in 2 x - 1", lambda sp, n, x: sp.eval_sh_chebyu(n, x)
)
shifted_chebyshev_polynomial_v = _polynomial(
    "Chebyshev polynomial of the third kind in 2 x - 1", lambda sp, n, x: _chebyshev_v(sp, n, 2 * x - 1)
)
shifted_chebyshev_polynomial_w = _polynomial(
    "Chebyshev polynomial of the fourth kind in 2 x - 1", lambda sp, n, x: _chebyshev_w(sp, n, 2 * x - 1)
)
