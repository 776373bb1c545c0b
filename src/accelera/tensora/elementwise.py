"""Functions of each element, broadcast over tensors; arguments may be Python numbers beside tensors.

Each is one entry of the op table; what is written here is its name, its arguments and what it computes.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from accelera.errors import ShapeError
from accelera.tensora import dtypes
from accelera.tensora.amp import computes_in
from accelera.tensora.core import Tensor, native
from accelera.tensora.inspection import placed
from accelera.tensora.typing import Device, DTypeLike, Scalar

Unary = Callable[[Tensor], Tensor]
Binary = Callable[["Tensor | Scalar", "Tensor | Scalar"], Tensor]


def _unary(name: str, doc: str, *, op: str | None = None) -> Unary:
    """Return the operation `op` of the table as a function of one tensor."""
    run = getattr(native, op or name)

    def function(x: Any, /) -> Tensor:
        return run(x)

    return _named(function, name, doc)


def _binary(name: str, doc: str, *, op: str | None = None) -> Binary:
    """Return the operation `op` of the table as a function of two tensors, or of a tensor and a number."""
    run = getattr(native, op or name)

    def function(x1: Tensor | Scalar, x2: Tensor | Scalar, /) -> Tensor:
        return run(x1, x2)

    return _named(function, name, doc)


def _named(function: Callable[..., Any], name: str, doc: str) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    function.__module__ = __name__
    return function


# --- one argument -----------------------------------------------------------------------------------------

abs = _unary("abs", "Absolute value; magnitude of a complex number.")
acos = _unary("acos", "Inverse cosine, from 0 to pi.")
acosh = _unary("acosh", "Inverse hyperbolic cosine.")
angle = _unary("angle", "Angle of a complex number with the positive real axis, in radians.")
asin = _unary("asin", "Inverse sine, from -pi/2 to pi/2.")
asinh = _unary("asinh", "Inverse hyperbolic sine.")
atan = _unary("atan", "Inverse tangent, from -pi/2 to pi/2.")
atanh = _unary("atanh", "Inverse hyperbolic tangent.")
bitwise_invert = _unary(
    "bitwise_invert", "Each bit of an integer inverted; the opposite of a bool.", op="bitwise_not"
)
ceil = _unary("ceil", "Smallest integer that is not less.")
conj = _unary("conj", "Complex conjugate.")
cos = _unary("cos", "Cosine of an angle in radians.")
cosh = _unary("cosh", "Hyperbolic cosine.")
digamma = _unary("digamma", "Derivative of the logarithm of the gamma function.")
erf = _unary("erf", "Error function.")
erfc = _unary("erfc", "One minus the error function.")
erfinv = _unary("erfinv", "Inverse of the error function.")
exp = _unary("exp", "Exponential function.")
exp2 = _unary("exp2", "Power of two.")
expm1 = _unary("expm1", "Exponential function less one, accurate near zero.")
floor = _unary("floor", "Largest integer that is not greater.")
i0 = _unary("i0", "Modified Bessel function of the first kind of order 0.")
imag = _unary("imag", "Imaginary part of a complex number.")
isfinite = _unary("isfinite", "Whether a number is neither infinite nor NaN.")
isinf = _unary("isinf", "Whether a number is infinite.")
isnan = _unary("isnan", "Whether a number is NaN.")
lgamma = _unary("lgamma", "Logarithm of the absolute value of the gamma function.")
log = _unary("log", "Natural logarithm.")
log10 = _unary("log10", "Logarithm to base 10.")
log1p = _unary("log1p", "Natural logarithm of 1 + x, accurate near zero.")
log2 = _unary("log2", "Logarithm to base 2.")
logical_not = _unary("logical_not", "Whether a number is zero.")
negative = _unary("negative", "The number with the other sign.")
positive = _unary("positive", "The number itself, in a new tensor.")
real = _unary("real", "Real part of a complex number.")
reciprocal = _unary("reciprocal", "One divided by the number.")
relu = _unary("relu", "The number where it is positive, otherwise zero.")
rsqrt = _unary("rsqrt", "One divided by the square root.")
sigmoid = _unary("sigmoid", "Logistic function 1 / (1 + exp(-x)).")
sign = _unary("sign", "-1, 0 or 1 by the sign; of a complex number x / abs(x).")
signbit = _unary("signbit", "Whether the sign bit is set, as in -0.0.")
sin = _unary("sin", "Sine of an angle in radians.")
sinc = _unary("sinc", "sin(pi x) / (pi x), 1 at zero.")
sinh = _unary("sinh", "Hyperbolic sine.")
sqrt = _unary("sqrt", "Square root.")
square = _unary("square", "The number times itself.")
tan = _unary("tan", "Tangent of an angle in radians.")
tanh = _unary("tanh", "Hyperbolic tangent.")
trunc = _unary("trunc", "Nearest integer towards zero.")

# --- two arguments ----------------------------------------------------------------------------------------

add = _binary("add", "Sum.")
atan2 = _binary("atan2", "Angle of the point (x2, x1) with the positive x axis, from -pi to pi.")
bitwise_and = _binary("bitwise_and", "Bits that are set in both.")
bitwise_left_shift = _binary("bitwise_left_shift", "Bits of x1 moved up by x2 places.")
bitwise_or = _binary("bitwise_or", "Bits that are set in at least one.")
bitwise_right_shift = _binary("bitwise_right_shift", "Bits of x1 moved down by x2 places; the sign stays.")
bitwise_xor = _binary("bitwise_xor", "Bits that are set in exactly one.")
complex = _binary("complex", "Complex number of a real and an imaginary part.")
copysign = _binary("copysign", "Magnitude of x1 with the sign of x2.")
divide = _binary("divide", "Quotient; of integers in the default floating-point type.")
equal = _binary("equal", "Whether both are equal.")
floor_divide = _binary("floor_divide", "Largest integer not greater than the quotient.")
fmax = _binary("fmax", "The greater of both; of a number and NaN the number.")
fmin = _binary("fmin", "The lesser of both; of a number and NaN the number.")
fmod = _binary("fmod", "Remainder of division with the sign of x1, as C's.")
gcd = _binary("gcd", "Greatest common divisor of integers; not negative.")
greater = _binary("greater", "Whether x1 > x2.")
greater_equal = _binary("greater_equal", "Whether x1 >= x2.")
heaviside = _binary("heaviside", "0 where x1 is negative, x2 where it is zero, 1 where it is positive.")
hypot = _binary("hypot", "Square root of the sum of squares, without overflow.")
lcm = _binary("lcm", "Least common multiple of integers; not negative.")
less = _binary("less", "Whether x1 < x2.")
less_equal = _binary("less_equal", "Whether x1 <= x2.")
logaddexp = _binary("logaddexp", "Logarithm of exp(x1) + exp(x2), without overflow.")
logical_and = _binary("logical_and", "Whether both are other than zero.")
logical_or = _binary("logical_or", "Whether at least one is other than zero.")
logical_xor = _binary("logical_xor", "Whether exactly one is other than zero.")
maximum = _binary("maximum", "The greater of both; NaN where one is NaN.")
minimum = _binary("minimum", "The lesser of both; NaN where one is NaN.")
multiply = _binary("multiply", "Product.")
nextafter = _binary("nextafter", "Next number of the type after x1 towards x2.")
not_equal = _binary("not_equal", "Whether both differ.")
pow = _binary("pow", "x1 to the power of x2.")
remainder = _binary("remainder", "Remainder of division with the sign of x2, as Python's.")
subtract = _binary("subtract", "Difference.")
xlogy = _binary("xlogy", "x1 * log(x2), zero where x1 is zero.")

# --- more -------------------------------------------------------------------------------------------------


def clip(x: Tensor, /, min: Tensor | Scalar | None = None, max: Tensor | Scalar | None = None) -> Tensor:  # noqa: A002
    """Limit each element to the range from `min` to `max`.

    Parameters
    ----------
    x
        Tensor of a real type.
    min, max
        Numbers or tensors that broadcast with `x`; None for no limit. NaN in one of them gives NaN.

    Returns
    -------
    Tensor
        Of the type of `x`, unless a limit is of a wider kind.

    """
    low, high = (_limit(x, each, at) for each, at in ((min, "min"), (max, "max")))
    if low is None and high is None:
        return native.copy(x)
    # Elements equal to a limit keep their gradient, so floating-point elements have an infinite second limit.
    if x.dtype in dtypes.KINDS["real floating"]:
        low, high = (-math.inf if low is None else low), (math.inf if high is None else high)
    if high is None:
        return native.maximum(x, low)
    if low is None:
        return native.minimum(x, high)
    return native.clip(x, low, high)


def _limit(x: Tensor, limit: Any, side: str) -> Any:
    """One limit of `clip` in the type of `x`, or None where every element keeps it."""
    if limit is None or x.dtype not in dtypes.INTEGERS:
        return (
            limit
            if limit is None or not isinstance(limit, Tensor) or limit.dtype == x.dtype
            else _same_kind(x, limit)
        )
    if not isinstance(limit, int):
        return _same_kind(x, limit) if isinstance(limit, Tensor) else limit
    bounds = dtypes.iinfo(x.dtype)
    keeps_all = limit <= bounds.min if side == "min" else limit >= bounds.max
    return None if keeps_all else limit


def _same_kind(x: Tensor, limit: Any) -> Any:
    """Convert a limit to the type of `x` if both are integers or both floating-point."""
    both_integers = x.dtype in dtypes.INTEGERS and limit.dtype in dtypes.INTEGERS
    both_inexact = x.dtype in dtypes.INEXACT and limit.dtype in dtypes.INEXACT
    return native.cast(limit, x.dtype) if both_integers or both_inexact else limit


def where(condition: Tensor, x1: Tensor | Scalar, x2: Tensor | Scalar, /) -> Tensor:
    """Elements of `x1` where the condition holds, otherwise of `x2`; all three broadcast.

    Raises
    ------
    TypeError
        If the condition is not of type bool.

    """
    if not isinstance(x1, Tensor) and not isinstance(x2, Tensor):
        x1 = native.asarray(x1, dtypes.result_type(x1, x2))
    return native.where(condition, x1, x2)


def lerp(start: Tensor | Scalar, end: Tensor | Scalar, weight: Tensor | Scalar, /) -> Tensor:
    """Linear interpolation: ``start + weight * (end - start)``."""
    return native.lerp(start, end, weight)


def astype(
    x: Tensor, dtype: DTypeLike, /, *, copy: builtins.bool = True, device: Device | None = None
) -> Tensor:
    """Elements as another type; the tensor itself if it is of this type and ``copy=False``.

    Floating-point numbers become integers by truncation; complex ones lose their imaginary part.
    """
    made = native.cast(placed(x, device), dtypes.as_dtype(dtype))
    return native.copy(x) if copy and made is x else made


def round(x: Tensor, /, *, decimals: int = 0) -> Tensor:
    """Nearest number with that many decimals (negative: tens); the even one of two that are equally near."""
    if decimals == 0:
        return native.round(x)
    scale = 10.0 ** builtins.abs(decimals)
    if decimals > 0:
        return native.divide(native.round(native.multiply(x, scale)), scale)
    return native.multiply(native.round(native.divide(x, scale)), scale)


# --- compositions -----------------------------------------------------------------------------------------


class Frexp(NamedTuple):
    """Result of `frexp`."""

    mantissa: Any
    exponent: Any


def addcdiv(x: Tensor, x1: Tensor | Scalar, x2: Tensor | Scalar, /, *, value: Scalar = 1) -> Tensor:
    """``x + value * x1 / x2``, for floating-point numbers."""
    return native.add(x, native.multiply(native.divide(x1, x2), value))


def addcmul(x: Tensor, x1: Tensor | Scalar, x2: Tensor | Scalar, /, *, value: Scalar = 1) -> Tensor:
    """``x + value * x1 * x2``."""
    return native.addcmul(
        x, x1 if builtins.isinstance(value, int) and value == 1 else native.multiply(x1, value), x2
    )


def deg2rad(x: Tensor, /) -> Tensor:
    """Degrees as radians."""
    return native.multiply(x, math.pi / 180)


def rad2deg(x: Tensor, /) -> Tensor:
    """Radians as degrees."""
    return native.multiply(x, 180 / math.pi)


def float_power(x1: Tensor | Scalar, x2: Tensor | Scalar, /) -> Tensor:
    """x1 to the power of x2 in float64, or complex128."""
    kind = dtypes.result_type(x1, x2, dtypes.float32)
    wide = dtypes.complex128 if kind in dtypes.KINDS["complex floating"] else dtypes.float64
    a, b = (native.cast(x, wide) if isinstance(x, Tensor) else x for x in (x1, x2))
    return native.pow(a, b)


def frac(x: Tensor, /) -> Tensor:
    """Fractional part with the sign of x: ``x - trunc(x)``."""
    return native.subtract(x, native.trunc(x))


def frexp(x: Tensor, /) -> Frexp:
    """Return mantissa (at least 1/2, less than 1) and int32 exponent with ``mantissa * 2**exponent == x``."""
    exponent = native.frexp_exponent(x.detach())
    # In two steps: the power of a subnormal number is too large to be represented.
    first = native.floor_divide(exponent, 2)
    scales = [native.exp2(native.cast(native.negative(n), x.dtype)) for n in (first, exponent - first)]
    return Frexp(native.multiply(native.multiply(x, scales[0]), scales[1]), exponent)


@computes_in("inputs")
def ldexp(x1: Tensor | Scalar, x2: Tensor | Scalar, /) -> Tensor:
    """``x1 * 2**x2``."""
    return native.multiply(x1, native.pow(2.0, x2))


def logaddexp2(x1: Tensor | Scalar, x2: Tensor | Scalar, /) -> Tensor:
    """Logarithm to base 2 of 2**x1 + 2**x2, without overflow."""
    scaled = native.logaddexp(native.multiply(x1, math.log(2)), native.multiply(x2, math.log(2)))
    return native.divide(scaled, math.log(2))


@computes_in("inputs")
def logit(x: Tensor, /, *, eps: float | None = None) -> Tensor:
    """Logarithm of x / (1 - x), the inverse of `sigmoid`; `eps` limits x to [eps, 1 - eps] before."""
    if eps is not None:
        limited = clip(x, eps, 1 - eps)
        return native.log(native.divide(limited, native.subtract(1, limited)))
    # Each piece sees harmless numbers where another one counts: its gradient there would be 0 times infinity.
    is_edge = native.logical_or(native.equal(x, 0), native.equal(x, 1))
    is_outside = native.logical_or(native.less(x, 0), native.less(1, x))
    inside = native.where(native.logical_or(is_edge, is_outside), 0.5, x)
    edge = native.where(is_edge, x, 0.5)
    infinite = native.subtract(native.log(edge), native.log1p(native.negative(edge)))
    finite = native.log(native.divide(inside, native.subtract(1, inside)))
    outside = native.multiply(native.where(is_outside, x, 0.0), math.nan)
    return native.where(is_outside, outside, native.where(is_edge, infinite, finite))


def nan_to_num(
    x: Tensor, /, *, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """Replace NaN by `nan`, infinities by `posinf` and `neginf` (the type's limits by default)."""
    if x.dtype not in dtypes.KINDS["real floating"]:
        return native.copy(x)
    limits = dtypes.finfo(x.dtype)
    high, low = limits.max if posinf is None else posinf, limits.min if neginf is None else neginf
    finite = native.where(isposinf(x), high, native.where(isneginf(x), low, x))
    return native.where(native.isnan(x), nan, finite)


@computes_in("float32")
def polar(magnitude: Tensor, angle: Tensor, /) -> Tensor:
    """Complex numbers with these magnitudes and angles in radians."""
    return native.complex(
        native.multiply(magnitude, native.cos(angle)), native.multiply(magnitude, native.sin(angle))
    )


@computes_in("float32")
def view_as_complex(x: Tensor, /) -> Tensor:
    """Complex numbers of the pairs on the last axis; a copy.

    Raises
    ------
    ValueError
        If the last axis has not 2 elements.

    """
    if x.ndim == 0 or x.shape[-1] != 2:
        raise ShapeError(f"[view_as_complex] shape {x.shape}; the last axis must have 2 elements")
    return native.complex(x[..., 0], x[..., 1])


def view_as_real(x: Tensor, /) -> Tensor:
    """Pairs of the real and the imaginary parts of complex numbers on a new last axis; a copy."""
    parts = [native.reshape(each, (*x.shape, 1)) for each in (native.real(x), native.imag(x))]
    return native.concat(parts, x.ndim)


# --- tests ------------------------------------------------------------------------------------------------


def isclose(
    x1: Tensor,
    x2: Tensor,
    /,
    *,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: bool = False,
) -> Tensor:
    """Mask of the elements that are equal, or for which ``abs(x1 - x2) <= atol + rtol * abs(x2)``.

    With `equal_nan`, two NaNs count as equal.
    """
    close = native.equal(x1, x2)
    a, b = (x if x.dtype in dtypes.INEXACT else native.cast(x, dtypes.float64) for x in (x1, x2))
    distance = native.abs(native.subtract(a, b))
    near = native.less_equal(distance, native.add(native.multiply(native.abs(b), rtol), atol))
    close = native.logical_or(close, native.logical_and(near, native.isfinite(distance)))
    both = native.logical_and(native.isnan(x1), native.isnan(x2))
    return native.logical_or(close, both) if equal_nan else close


def allclose(
    x1: Tensor,
    x2: Tensor,
    /,
    *,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: bool = False,
) -> builtins.bool:
    """Return whether all elements are close, as a Python bool; see `isclose`."""
    return builtins.bool(native.all(isclose(x1, x2, rtol=rtol, atol=atol, equal_nan=equal_nan)))


def array_equal(x1: Tensor, x2: Tensor, /) -> builtins.bool:
    """Return whether shapes and all elements are equal, as a Python bool (PyTorch's `equal`)."""
    return x1.shape == x2.shape and builtins.bool(native.all(native.equal(x1, x2)))


def isneginf(x: Tensor, /) -> Tensor:
    """Mask of the elements that are negative infinity."""
    return native.equal(x, -math.inf) if x.dtype in dtypes.INEXACT else native.not_equal(x, x)


def isposinf(x: Tensor, /) -> Tensor:
    """Mask of the elements that are positive infinity."""
    return native.equal(x, math.inf) if x.dtype in dtypes.INEXACT else native.not_equal(x, x)


def isreal(x: Tensor, /) -> Tensor:
    """Mask of the elements whose imaginary part is zero; True everywhere for real types."""
    return (
        native.equal(native.imag(x), 0)
        if x.dtype in dtypes.KINDS["complex floating"]
        else native.isfinite(native.full(tuple(x.shape), 0, x.dtype))
    )
