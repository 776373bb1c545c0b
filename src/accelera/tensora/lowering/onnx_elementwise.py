"""Elementwise entries of the op table in ONNX; formulas as in csrc/tensora/kernels/formulas.def."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from accelera.errors import UnsupportedError
from accelera.tensora.lowering.onnx_graph import GraphValue

Formula = Callable[..., GraphValue]
FLOATS = ("float16", "bfloat16", "float32", "float64")
COMPUTED = {
    "float16": "float32",
    "bfloat16": "float32",
    "bool": "int64",
    "int8": "int64",
    "int16": "int64",
    "uint8": "int64",
    "uint16": "int64",
    "uint32": "int64",
}
"""Types that runtimes have few kernels for, and those that hold all their numbers."""


def node(op: str, dtype: str = "", **given: Any) -> Formula:
    """The formula that is one node."""
    return lambda *operands: operands[0].graph.elementwise(op, *operands, dtype=dtype, **given)


def _where(condition: GraphValue, x: Any, y: Any) -> GraphValue:
    return condition.graph.where(condition, x, y)


def _is_integer(x: GraphValue) -> bool:
    return x.dtype not in FLOATS


def _unless_integer(function: Formula) -> Formula:
    return lambda x: x if _is_integer(x) else function(x)


def _is_negative(x: GraphValue) -> GraphValue:
    """Of zero by its sign."""
    return x < 0 if _is_integer(x) else _or(x < 0, _and(x.equals(0), (1 / x) < 0))


def _and(x: GraphValue, y: GraphValue) -> GraphValue:
    return x.graph.elementwise("And", x, y)


def _or(x: GraphValue, y: GraphValue) -> GraphValue:
    return x.graph.elementwise("Or", x, y)


def _not(x: GraphValue) -> GraphValue:
    return x.graph.elementwise("Not", x)


exp, log, tanh, erf, sqrt, absolute, floor, ceil = (
    node(op) for op in ("Exp", "Log", "Tanh", "Erf", "Sqrt", "Abs", "Floor", "Ceil")
)
sigmoid = node("Sigmoid")


def _expm1(x: GraphValue) -> GraphValue:
    """(e^x + 1) tanh(x / 2), exact where x is small; beyond 1 as it is written."""
    return _where(absolute(x) < 1, tanh(x * 0.5) * (exp(x) + 1), exp(x) - 1)


def _log1p(x: GraphValue) -> GraphValue:
    """log(u) x / (u - 1) with u = 1 + x, exact where x is small (W. Kahan)."""
    u = x + 1
    is_tiny, is_large = u.equals(1), absolute(x) > 1
    denominator = _where(is_tiny, 1.0, u - 1)
    return _where(is_tiny, x, _where(is_large, log(u), log(u) * x / denominator))


def _floor_divide(x: GraphValue, y: GraphValue) -> GraphValue:
    if not _is_integer(x):
        return floor(x / y)
    safe = _where(y.equals(0), 1, y)
    rest = x.graph.elementwise("Mod", x, safe)
    return _where(y.equals(0), 0, (x - rest) / safe)


def _remainder(x: GraphValue, y: GraphValue) -> GraphValue:
    if _is_integer(x):
        return _where(y.equals(0), 0, x.graph.elementwise("Mod", x, _where(y.equals(0), 1, y)))
    rest = x.graph.elementwise("Mod", x, y, fmod=1)
    signs_differ = x.graph.elementwise("Xor", rest < 0, y < 0)
    signed_zero = _where(_is_negative(y), -0.0, y * 0)
    return _where(rest.equals(0), signed_zero, _where(signs_differ, rest + y, rest))


def _fmod(x: GraphValue, y: GraphValue) -> GraphValue:
    if not _is_integer(x):
        return x.graph.elementwise("Mod", x, y, fmod=1)
    return _where(y.equals(0), 0, x.graph.elementwise("Mod", x, _where(y.equals(0), 1, y), fmod=1))


def _pow(x: GraphValue, y: GraphValue) -> GraphValue:
    if not _is_integer(x):
        return x.graph.elementwise("Pow", x, y)
    power = x.graph.elementwise("Pow", x, _where(y < 0, 0, y))
    is_odd = x.graph.elementwise("Mod", y, 2).equals(1)
    inverse = _where(x.equals(1), 1, _where(x.equals(-1), _where(is_odd, -1, x * 0 + 1), 0))
    return _where(y < 0, inverse, power)


def _copysign(x: GraphValue, y: GraphValue) -> GraphValue:
    return _where(_is_negative(y), -absolute(x), absolute(x))


def _logaddexp(x: GraphValue, y: GraphValue) -> GraphValue:
    high, low = x.graph.elementwise("Max", x, y), x.graph.elementwise("Min", x, y)
    same = x.equals(y)
    return _where(same, x + math.log(2), high + _log1p(exp(_where(same, 0.0, low - high))))


def _xlogy(x: GraphValue, y: GraphValue) -> GraphValue:
    return _where(y.is_nan(), y, _where(x.equals(0), 0.0, x * log(y)))


def _heaviside(x: GraphValue, y: GraphValue) -> GraphValue:
    positive = (x > 0).to(x.dtype)
    if not _is_integer(x):
        positive = _where(x.is_nan(), x, positive)
    return _where(x.equals(0), y, positive)


def _maximum(x: GraphValue, y: GraphValue) -> GraphValue:
    return x.graph.elementwise("Max", x, y)


def _minimum(x: GraphValue, y: GraphValue) -> GraphValue:
    return x.graph.elementwise("Min", x, y)


def _other_than_nan(function: Formula) -> Formula:
    def chosen(x: GraphValue, y: GraphValue) -> GraphValue:
        if _is_integer(x):
            return function(x, y)
        return _where(x.is_nan(), y, _where(y.is_nan(), x, function(x, y)))

    return chosen


def _clip(x: GraphValue, low: GraphValue, high: GraphValue) -> GraphValue:
    if low.size == high.size == 1:
        return x.graph.add("Clip", [x, low.reshape(()), high.reshape(())], x.shape, x.dtype)
    return _minimum(_maximum(x, low), high)


def _softplus(x: GraphValue, beta: GraphValue, threshold: GraphValue) -> GraphValue:
    scaled = x * beta
    return _where(scaled > threshold, x, _log1p(exp(_minimum(scaled, threshold))) / beta)


def _binary_cross_entropy(x: GraphValue, y: GraphValue) -> GraphValue:
    least = x * 0 - 100.0
    return (y - 1) * _maximum(_log1p(x * -1), least) - y * _maximum(log(x), least)


def _binary_cross_entropy_backward(x: GraphValue, y: GraphValue, z: GraphValue) -> GraphValue:
    return x * (y - z) / _maximum((y * -1 + 1) * y, y * 0 + 1e-12)


def _normal_cdf(x: GraphValue) -> GraphValue:
    return (erf(x * math.sqrt(0.5)) + 1) * 0.5


def _gelu_derivative(x: GraphValue) -> GraphValue:
    return _normal_cdf(x) + x * exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))


def _tanh_cdf(x: GraphValue) -> GraphValue:
    return (tanh((x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)) + 1) * 0.5


def _gelu_tanh_derivative(x: GraphValue) -> GraphValue:
    p = _tanh_cdf(x)
    return p + x * p * (1 - p) * (2 * math.sqrt(2 / math.pi)) * (x * x * (3 * 0.044715) + 1)


def _silu_derivative(x: GraphValue) -> GraphValue:
    p = sigmoid(x)
    return p * (x * (1 - p) + 1)


def _sinc(x: GraphValue) -> GraphValue:
    zero = x.equals(0)
    scaled = _where(zero, 1.0, x * math.pi)
    return _where(zero, 1.0, node("Sin")(scaled) / scaled)


def _angle(x: GraphValue) -> GraphValue:
    return _where(x < 0, math.pi, _where(x.is_nan(), x, 0.0))


def _is_inf(x: GraphValue) -> GraphValue:
    return _not(x.equals(x)) if _is_integer(x) else x.graph.elementwise("IsInf", x, dtype="bool")


def _bits(op: str, on_bools: str) -> Formula:
    def lowered(*operands: GraphValue) -> GraphValue:
        is_bool = operands[0].dtype == "bool"
        return operands[0].graph.elementwise(on_bools if is_bool else op, *operands)

    return lowered


def _truth(x: GraphValue) -> GraphValue:
    return x if x.dtype == "bool" else _not(x.equals(0))


def _elu_backward(x: GraphValue, y: GraphValue, alpha: GraphValue) -> GraphValue:
    return _where(y > 0, x, x * (alpha * exp(y)))


UNARY: dict[str, Formula] = {
    "negative": lambda x: -x,
    "positive": lambda x: x,
    "conj": lambda x: x,
    "real": lambda x: x,
    "cast": lambda x: x,
    "abs": absolute,
    "sign": node("Sign"),
    "square": lambda x: x * x,
    "reciprocal": node("Reciprocal"),
    "sqrt": sqrt,
    "rsqrt": lambda x: node("Reciprocal")(sqrt(x)),
    "exp": exp,
    "exp2": lambda x: x.graph.elementwise("Pow", 2.0, x),
    "expm1": _expm1,
    "log": log,
    "log2": lambda x: log(x) * (1 / math.log(2)),
    "log10": lambda x: log(x) * (1 / math.log(10)),
    "log1p": _log1p,
    "sin": node("Sin"),
    "cos": node("Cos"),
    "tan": node("Tan"),
    "asin": node("Asin"),
    "acos": node("Acos"),
    "atan": node("Atan"),
    "sinh": node("Sinh"),
    "cosh": node("Cosh"),
    "tanh": tanh,
    "asinh": node("Asinh"),
    "acosh": node("Acosh"),
    "atanh": node("Atanh"),
    "sigmoid": sigmoid,
    "erf": erf,
    "sinc": _sinc,
    "floor": _unless_integer(floor),
    "ceil": _unless_integer(ceil),
    "trunc": _unless_integer(lambda x: _where(x < 0, ceil(x), floor(x))),
    "round": _unless_integer(node("Round")),
    "relu": lambda x: _maximum(x, x * 0) if _is_integer(x) else node("Relu")(x),
    "gelu": node("Gelu"),
    "gelu_tanh": node("Gelu", approximate="tanh"),
    "silu": lambda x: x * sigmoid(x),
    "mish": node("Mish"),
    "angle": _angle,
    "isnan": lambda x: x.is_nan(),
    "isinf": _is_inf,
    "isfinite": lambda x: _not(_or(x.is_nan(), _is_inf(x))),
    "signbit": _is_negative,
    "logical_not": lambda x: _not(_truth(x)),
    "bitwise_not": _bits("BitwiseNot", "Not"),
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
    "maximum": _maximum,
    "minimum": _minimum,
    "fmax": _other_than_nan(_maximum),
    "fmin": _other_than_nan(_minimum),
    "copysign": _copysign,
    "logaddexp": _logaddexp,
    "xlogy": _xlogy,
    "heaviside": _heaviside,
    "elu": lambda x, y: _where(x > 0, x, y * _expm1(x)),
    "leaky_relu": lambda x, y: _where(x > 0, x, x * y),
    "relu_backward": lambda x, y: _where(y <= 0, 0.0, x),
    "gelu_backward": lambda x, y: x * _gelu_derivative(y),
    "gelu_tanh_backward": lambda x, y: x * _gelu_tanh_derivative(y),
    "silu_backward": lambda x, y: x * _silu_derivative(y),
    "binary_cross_entropy": _binary_cross_entropy,
    "equal": lambda x, y: x.equals(y),
    "not_equal": lambda x, y: _not(x.equals(y)),
    "less": lambda x, y: x < y,
    "less_equal": lambda x, y: x <= y,
    "greater": lambda x, y: x > y,
    "greater_equal": lambda x, y: x >= y,
    "logical_and": lambda x, y: _and(_truth(x), _truth(y)),
    "logical_or": lambda x, y: _or(_truth(x), _truth(y)),
    "logical_xor": lambda x, y: x.graph.elementwise("Xor", _truth(x), _truth(y)),
    "bitwise_and": _bits("BitwiseAnd", "And"),
    "bitwise_or": _bits("BitwiseOr", "Or"),
    "bitwise_xor": _bits("BitwiseXor", "Xor"),
}

TERNARY: dict[str, Formula] = {
    "clip": _clip,
    "lerp": lambda x, y, z: x + z * (y - x),
    "addcmul": lambda x, y, z: x + y * z,
    "softplus": _softplus,
    "elu_backward": _elu_backward,
    "leaky_relu_backward": lambda x, y, z: _where(y > 0, x, x * z),
    "clip_backward": lambda x, y, z: _where(y.equals(z), x, 0.0),
    "hardtanh": _clip,
    "keep_above": lambda x, y, z: _where(y <= z, 0.0, x),
    "keep_below": lambda x, y, z: _where(y >= z, 0.0, x),
    "binary_cross_entropy_backward": _binary_cross_entropy_backward,
}

FORMULAS = UNARY | BINARY | TERNARY
"""By name; the operands have one type."""
ON_BOOLS = {"cast", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"} | {
    f"logical_{word}" for word in ("and", "or", "xor", "not")
}
"""Formulas that take bool as it is."""


def lowered_elementwise(name: str, operands: list[GraphValue], computed_in: str, dtype: str) -> GraphValue:
    """Value of a formula, in the type of its result.

    Raises
    ------
    NotImplementedError
        For complex numbers, and for uint64 where a result depends on its highest bit.

    """
    if name == "cast":
        return operands[0].to(dtype)
    if computed_in.startswith("complex") or (computed_in == "uint64" and name not in ("add", "multiply")):
        raise UnsupportedError(f"[export_onnx] {name!r} of {computed_in} has no form here; use other types")
    wide = COMPUTED.get(computed_in, "int64" if computed_in == "uint64" else computed_in)
    if computed_in == "bool" and name in ON_BOOLS:
        wide = "bool"
    values = [each.to(computed_in).to(wide) for each in operands]
    if computed_in == "bool" and name in ("add", "multiply"):
        wide_name = {"add": "logical_or", "multiply": "logical_and"}[name]
        return FORMULAS[wide_name](*values).to(dtype)
    return FORMULAS[name](*values).to(dtype)
