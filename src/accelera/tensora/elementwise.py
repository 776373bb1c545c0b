"""Functions of each element, broadcast over tensors; arguments may be Python numbers beside tensors.

Each is one entry of the op table; what is written here is its name, its arguments and what it computes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accelera.tensora import dtypes
from accelera.tensora.core import Tensor, native
from accelera.tensora.inspection import check_device

Unary = Callable[[Any], Any]
Binary = Callable[[Any, Any], Any]


def _unary(name: str, doc: str, *, op: str | None = None) -> Unary:
    """Return the operation `op` of the table as a function of one tensor."""
    run = getattr(native, op or name)

    def function(x: Any, /) -> Any:
        return run(x)

    return _named(function, name, doc)


def _binary(name: str, doc: str, *, op: str | None = None) -> Binary:
    """Return the operation `op` of the table as a function of two tensors, or of a tensor and a number."""
    run = getattr(native, op or name)

    def function(x1: Any, x2: Any, /) -> Any:
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
round = _unary("round", "Nearest integer; the even one of two that are equally near.")
rsqrt = _unary("rsqrt", "One divided by the square root.")
sigmoid = _unary("sigmoid", "Logistic function 1 / (1 + exp(-x)).")
sign = _unary("sign", "-1, 0 or 1 by the sign; of a complex number x / abs(x).")
signbit = _unary("signbit", "Whether the sign bit is set, as in -0.0.")
sin = _unary("sin", "Sine of an angle in radians.")
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
copysign = _binary("copysign", "Magnitude of x1 with the sign of x2.")
divide = _binary("divide", "Quotient; of integers in the default floating-point type.")
equal = _binary("equal", "Whether both are equal.")
floor_divide = _binary("floor_divide", "Largest integer not greater than the quotient.")
fmax = _binary("fmax", "The greater of both; of a number and NaN the number.")
fmin = _binary("fmin", "The lesser of both; of a number and NaN the number.")
fmod = _binary("fmod", "Remainder of division with the sign of x1, as C's.")
greater = _binary("greater", "Whether x1 > x2.")
greater_equal = _binary("greater_equal", "Whether x1 >= x2.")
heaviside = _binary("heaviside", "0 where x1 is negative, x2 where it is zero, 1 where it is positive.")
hypot = _binary("hypot", "Square root of the sum of squares, without overflow.")
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


def clip(x: Any, /, min: Any = None, max: Any = None) -> Any:  # noqa: A002
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
    if high is None:
        return native.maximum(x, low)
    if low is None:
        return native.minimum(x, high)
    return native.clip(x, low, high)


def _limit(x: Any, limit: Any, side: str) -> Any:
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


def _same_kind(x: Any, limit: Any) -> Any:
    """Convert a limit to the type of `x` if both are integers or both floating-point."""
    both_integers = x.dtype in dtypes.INTEGERS and limit.dtype in dtypes.INTEGERS
    both_inexact = x.dtype in dtypes.INEXACT and limit.dtype in dtypes.INEXACT
    return native.cast(limit, x.dtype) if both_integers or both_inexact else limit


def where(condition: Tensor, x1: Any, x2: Any, /) -> Any:
    """Elements of `x1` where the condition holds, otherwise of `x2`; all three broadcast.

    Raises
    ------
    TypeError
        If the condition is not of type bool.

    """
    if not isinstance(x1, Tensor) and not isinstance(x2, Tensor):
        x1 = native.asarray(x1, dtypes.result_type(x1, x2))
    return native.where(condition, x1, x2)


def lerp(start: Any, end: Any, weight: Any, /) -> Any:
    """Linear interpolation: ``start + weight * (end - start)``."""
    return native.lerp(start, end, weight)


def astype(x: Tensor, dtype: Any, /, *, copy: Any = True, device: Any = None) -> Tensor:
    """Elements as another type; the tensor itself if it is of this type and ``copy=False``.

    Floating-point numbers become integers by truncation; complex ones lose their imaginary part.
    """
    check_device(device)
    wanted = dtypes.as_dtype(dtype)
    return native.copy(x) if copy and wanted == x.dtype else native.cast(x, wanted)
