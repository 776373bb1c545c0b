"""Elementwise entries of the op table in JAX; the formulas are those of csrc/tensora/kernels/formulas.def."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy import special

Formula = Callable[..., Any]


def _is_integer(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.integer)


def _is_complex(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.complexfloating)


def _is_nan(x: Any) -> Any:
    return x != x


def _round(x: Any) -> Any:
    return x if _is_integer(x) else jnp.round(x)


def _unless_integer(function: Formula) -> Formula:
    return lambda x: x if _is_integer(x) else function(x)


def _floor_divide(x: Any, y: Any) -> Any:
    if not _is_integer(x):
        return jnp.floor(x / y)
    return jnp.where(y == 0, 0, jnp.floor_divide(x, jnp.where(y == 0, 1, y)))


def _remainder(x: Any, y: Any) -> Any:
    if _is_integer(x):
        return jnp.where(y == 0, 0, jnp.remainder(x, jnp.where(y == 0, 1, y)))
    rest = jnp.fmod(x, y)
    signed = jnp.where((rest < 0) != (y < 0), rest + y, rest)
    return jnp.where(rest == 0, jnp.copysign(jnp.zeros_like(y), y), signed)


def _fmod(x: Any, y: Any) -> Any:
    if not _is_integer(x):
        return jnp.fmod(x, y)
    return jnp.where(y == 0, 0, jnp.fmod(x, jnp.where(y == 0, 1, y)))


def _lcm(x: Any, y: Any) -> Any:
    divisor = jnp.gcd(x, y)
    return jnp.where(divisor == 0, 0, jnp.abs(x // jnp.where(divisor == 0, 1, divisor) * y))


def _integer_power(x: Any, y: Any) -> Any:
    """Power by squaring, modulo the range of the type; 0, 1 or -1 for negative exponents."""
    bits = 8 * x.dtype.itemsize
    result, base, rest = jnp.ones_like(x), x, y
    for _ in range(bits):
        result = jnp.where(rest & 1 == 1, result * base, result)
        base, rest = base * base, jax.lax.shift_right_logical(rest, jnp.ones_like(rest))
    if not jnp.issubdtype(x.dtype, jnp.signedinteger):
        return result
    inverse = jnp.where(x == 1, 1, jnp.where(x == -1, jnp.where(y & 1 == 1, -1, 1), 0))
    return jnp.where(y < 0, inverse, result).astype(x.dtype)


def _pow(x: Any, y: Any) -> Any:
    if _is_integer(x):
        return _integer_power(x, y)
    if _is_complex(x):
        return jnp.where(y == 0, 1, jnp.power(x, y))
    return jnp.where(y == 2, x * x, jnp.power(x, y))


def _shift(x: Any, y: Any, shift: Formula, beyond: Any) -> Any:
    fits = (y >= 0) & (y < 8 * x.dtype.itemsize)
    return jnp.where(fits, shift(x, jnp.where(fits, y, 0)), beyond).astype(x.dtype)


def _shift_right(x: Any, y: Any) -> Any:
    return _shift(x, y, jnp.right_shift, jnp.where(x < 0, jnp.array(-1).astype(x.dtype), jnp.zeros_like(x)))


def _angle(x: Any) -> Any:
    if _is_complex(x):
        return jnp.angle(x)
    return jnp.where(x < 0, math.pi, jnp.where(_is_nan(x), x, 0)).astype(x.dtype)


def _isinf(x: Any) -> Any:
    return jnp.isinf(x.real) | jnp.isinf(x.imag) if _is_complex(x) else jnp.isinf(x)


def _heaviside(x: Any, y: Any) -> Any:
    positive = (x > 0).astype(x.dtype)
    return jnp.where(_is_nan(x), x, jnp.where(x == 0, y, positive))


def _logaddexp(x: Any, y: Any) -> Any:
    high, low = jnp.maximum(x, y), jnp.minimum(x, y)
    same = x == y
    safe = jnp.where(same, 0, low - high)
    return jnp.where(same, x + math.log(2), high + jnp.log1p(jnp.exp(safe)))


def _xlogy(x: Any, y: Any) -> Any:
    return jnp.where(_is_nan(y), y, jnp.where(x == 0, 0, x * jnp.log(y)))


def _clip(x: Any, low: Any, high: Any) -> Any:
    raised = jnp.where(x < low, low, x)
    inside = jnp.where(raised > high, high, raised)
    return jnp.where(_is_nan(low), low, jnp.where(_is_nan(high), high, inside))


def _softplus(x: Any, beta: Any, threshold: Any) -> Any:
    scaled = x * beta
    return jnp.where(scaled > threshold, x, jnp.log1p(jnp.exp(jnp.minimum(scaled, threshold))) / beta)


def _binary_cross_entropy(x: Any, y: Any) -> Any:
    return (y - 1) * jnp.maximum(jnp.log1p(-x), -100) - y * jnp.maximum(jnp.log(x), -100)


def _binary_cross_entropy_backward(x: Any, y: Any, z: Any) -> Any:
    return x * (y - z) / jnp.maximum((1 - y) * y, 1e-12)


def _normal_cdf(x: Any) -> Any:
    return 0.5 * (1 + special.erf(x * math.sqrt(0.5)))


def _gelu_derivative(x: Any) -> Any:
    return _normal_cdf(x) + x * jnp.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _tanh_cdf(x: Any) -> Any:
    return 0.5 * (1 + jnp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def _gelu_tanh_derivative(x: Any) -> Any:
    p = _tanh_cdf(x)
    return p + 2 * x * p * (1 - p) * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)


def _silu_derivative(x: Any) -> Any:
    p = jax.nn.sigmoid(x)
    return p * (1 + x * (1 - p))


def _mish(x: Any) -> Any:
    w = jnp.exp(jnp.minimum(x, 30))
    t = w * (w + 2)
    return x * (t / (t + 2))


def _frexp_exponent(x: Any) -> Any:
    return jnp.frexp(x)[1]


def _erfcx(x: Any) -> Any:
    """e^(x²) erfc(x); beyond 5 by its continued fraction, where the product would be inf times 0."""
    direct = jnp.exp(jnp.minimum(x, 5) ** 2) * special.erfc(jnp.minimum(x, 5))
    far = jnp.maximum(x, 5)
    tail = far
    for k in range(40, 0, -1):
        tail = far + k / 2 / tail
    return jnp.where(x > 5, 1 / (math.sqrt(math.pi) * tail), direct)


def _sinc(x: Any) -> Any:
    scaled = math.pi * x
    return jnp.where(x == 0, 1, jnp.sin(scaled) / jnp.where(x == 0, 1, scaled))


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + jnp.exp(-x)) if _is_complex(x) else jax.nn.sigmoid(x)


def _larger(x: Any, y: Any) -> Any:
    return jnp.where((x > y) | _is_nan(x), x, y)


def _smaller(x: Any, y: Any) -> Any:
    return jnp.where((x < y) | _is_nan(x), x, y)


def _polygamma(n: Any, x: Any) -> Any:
    return special.polygamma(n.astype(jnp.int32), x)


def _digamma(x: Any) -> Any:
    return jnp.where(x == 0, jnp.copysign(jnp.array(math.inf, x.dtype), -x), special.digamma(x))


def _complex(x: Any, y: Any) -> Any:
    return jax.lax.complex(*jnp.broadcast_arrays(x, y))


UNARY: dict[str, Formula] = {
    "negative": lambda x: -x,
    "positive": lambda x: x,
    "abs": jnp.abs,
    "sign": jnp.sign,
    "square": lambda x: x * x,
    "reciprocal": lambda x: 1 / x,
    "sqrt": jnp.sqrt,
    "rsqrt": lambda x: 1 / jnp.sqrt(x),
    "exp": jnp.exp,
    "exp2": jnp.exp2,
    "expm1": jnp.expm1,
    "log": jnp.log,
    "log2": jnp.log2,
    "log10": jnp.log10,
    "log1p": jnp.log1p,
    "sin": jnp.sin,
    "cos": jnp.cos,
    "tan": jnp.tan,
    "asin": jnp.arcsin,
    "acos": jnp.arccos,
    "atan": jnp.arctan,
    "sinh": jnp.sinh,
    "cosh": jnp.cosh,
    "tanh": jnp.tanh,
    "asinh": jnp.arcsinh,
    "acosh": jnp.arccosh,
    "atanh": jnp.arctanh,
    "sigmoid": _sigmoid,
    "erf": special.erf,
    "erfc": special.erfc,
    "erfinv": special.erfinv,
    "erfcx": _erfcx,
    "lgamma": special.gammaln,
    "digamma": _digamma,
    "i0": special.i0,
    "i0e": special.i0e,
    "i1": special.i1,
    "i1e": special.i1e,
    "log_ndtr": special.log_ndtr,
    "ndtri": special.ndtri,
    "sinc": _sinc,
    "frexp_exponent": _frexp_exponent,
    "floor": _unless_integer(jnp.floor),
    "ceil": _unless_integer(jnp.ceil),
    "trunc": _unless_integer(jnp.trunc),
    "round": _round,
    "relu": lambda x: jnp.where((x > 0) | _is_nan(x), x, 0),
    "gelu": lambda x: x * _normal_cdf(x),
    "gelu_tanh": lambda x: x * _tanh_cdf(x),
    "silu": lambda x: x * jax.nn.sigmoid(x),
    "mish": _mish,
    "conj": jnp.conj,
    "real": jnp.real,
    "imag": jnp.imag,
    "angle": _angle,
    "isnan": _is_nan,
    "isinf": _isinf,
    "isfinite": jnp.isfinite,
    "signbit": jnp.signbit,
    "logical_not": lambda x: x == 0,
    "bitwise_not": lambda x: ~x,
    "cast": lambda x: x,
}

BINARY: dict[str, Formula] = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "divide": lambda x, y: x / y,
    "floor_divide": _floor_divide,
    "remainder": _remainder,
    "fmod": _fmod,
    "pow": _pow,
    "maximum": _larger,
    "minimum": _smaller,
    "fmax": lambda x, y: jnp.where((x > y) | _is_nan(y), x, y),
    "fmin": lambda x, y: jnp.where((x < y) | _is_nan(y), x, y),
    "atan2": jnp.arctan2,
    "hypot": jnp.hypot,
    "copysign": jnp.copysign,
    "nextafter": jnp.nextafter,
    "logaddexp": _logaddexp,
    "xlogy": _xlogy,
    "polygamma": _polygamma,
    "zeta": special.zeta,
    "gcd": jnp.gcd,
    "lcm": _lcm,
    "heaviside": _heaviside,
    "elu": lambda x, y: jnp.where(x > 0, x, y * jnp.expm1(x)),
    "leaky_relu": lambda x, y: jnp.where(x > 0, x, x * y),
    "relu_backward": lambda x, y: jnp.where(y <= 0, 0, x),
    "gelu_backward": lambda x, y: x * _gelu_derivative(y),
    "gelu_tanh_backward": lambda x, y: x * _gelu_tanh_derivative(y),
    "silu_backward": lambda x, y: x * _silu_derivative(y),
    "binary_cross_entropy": _binary_cross_entropy,
    "equal": lambda x, y: x == y,
    "not_equal": lambda x, y: x != y,
    "less": lambda x, y: x < y,
    "less_equal": lambda x, y: x <= y,
    "greater": lambda x, y: x > y,
    "greater_equal": lambda x, y: x >= y,
    "logical_and": lambda x, y: (x != 0) & (y != 0),
    "logical_or": lambda x, y: (x != 0) | (y != 0),
    "logical_xor": lambda x, y: (x != 0) != (y != 0),
    "bitwise_and": lambda x, y: x & y,
    "bitwise_or": lambda x, y: x | y,
    "bitwise_xor": lambda x, y: x ^ y,
    "bitwise_left_shift": lambda x, y: _shift(x, y, jnp.left_shift, 0),
    "bitwise_right_shift": _shift_right,
    "complex": _complex,
}

TERNARY: dict[str, Formula] = {
    "clip": _clip,
    "lerp": lambda x, y, z: x + z * (y - x),
    "addcmul": lambda x, y, z: x + y * z,
    "softplus": _softplus,
    "elu_backward": lambda x, y, z: jnp.where(y > 0, x, x * (z * jnp.exp(jnp.minimum(y, 0)))),
    "leaky_relu_backward": lambda x, y, z: jnp.where(y > 0, x, x * z),
    "clip_backward": lambda x, y, z: jnp.where(y == z, x, 0),
    "hardtanh": _clip,
    "keep_above": lambda x, y, z: jnp.where(y <= z, 0, x),
    "keep_below": lambda x, y, z: jnp.where(y >= z, 0, x),
    "binary_cross_entropy_backward": _binary_cross_entropy_backward,
}

FORMULAS = UNARY | BINARY | TERNARY
"""By name; the operands are arrays of one type, broadcast by JAX."""
