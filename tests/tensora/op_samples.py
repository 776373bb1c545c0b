"""Samples of each entry of the op table: inputs, how it is called, and the same in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.special

from accelera.tensora.core import native


@dataclass(frozen=True)
class Sample:
    """One call of an operation."""

    call: Callable[..., Any]
    reference: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    low: float = -2.0
    high: float = 2.0
    apart: float = 0.0
    """Values keep this distance from each other and from integers: the operation jumps or bends there."""
    complexes: bool = False
    """Whether it is sampled with complex numbers too."""
    integers: bool = True
    """Whether it is sampled with integers too (where it is defined for them)."""
    gradient: bool = True
    broadcasts: bool = False
    fixed: dict[int, Any] = field(default_factory=dict)
    """Inputs that are given as they are."""

    def inputs(self, dtype: str, seed: int = 0) -> list[Any]:
        random = np.random.default_rng(seed)
        made = []
        for i, shape in enumerate(self.shapes):
            if i in self.fixed:
                made.append(np.asarray(self.fixed[i]))
                continue
            values: Any = random.uniform(self.low, self.high, shape)
            if self.apart:
                n = values.size
                spread = (np.arange(n) + 0.5) / n * (self.high - self.low) + self.low + 0.07 + 0.013 * i
                values = random.permutation(spread).reshape(shape)
            if dtype.startswith("complex"):
                values = values + 1j * random.uniform(self.low, self.high, shape)
            if dtype.startswith("u"):
                values = np.abs(values)
            if dtype == "bool":
                values = values > 0
            kept = "float32" if dtype in ("bfloat16", "float16") else dtype
            made.append(np.asarray(values).astype(kept))
        return made


def _one(name: str, reference: Any, **options: Any) -> list[Sample]:
    return [Sample(getattr(native, name), reference, ((3, 4),), **options)]


def _two(name: str, reference: Any, **options: Any) -> list[Sample]:
    call = getattr(native, name)
    return [
        Sample(call, reference, ((3, 4), (3, 4)), **options),
        Sample(call, reference, ((3, 1), (4,)), broadcasts=True, **options),
    ]


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _sign(x: Any) -> Any:
    return np.sign(x) if not np.iscomplexobj(x) else np.where(x == 0, 0, x / np.where(x == 0, 1, np.abs(x)))


def _softmax(x: Any, axis: int) -> Any:
    return np.exp(x) / np.exp(x).sum(axis, keepdims=True)


def _normal(x: Any, axis: Any) -> Any:
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + 1e-3)


def _normal_gradients(g: Any, x: Any, w: Any, by_row: bool = False) -> Any:
    """Gradients of input, weight and bias, one behind the other; the latter of columns or of rows."""
    y, h = _normal(x, -1), g * w
    rest = h - h.mean(-1, keepdims=True) - y * (h * y).mean(-1, keepdims=True)
    gx = rest / np.sqrt(x.var(-1, keepdims=True) + 1e-3)
    return np.concatenate([gx.reshape(-1), (g * y).sum(int(by_row)), g.sum(int(by_row))])


def _group_normal(x: Any) -> Any:
    return _normal(x.reshape(2, 2, 6), -1).reshape(x.shape)


def _channel_rows(x: Any) -> Any:
    return np.moveaxis(x, 1, 0).reshape(4, 6)


def _channel_backward(g: Any, x: Any, *weight: Any) -> Any:
    """Gradients over the batch, that of the input with its channels first."""
    wide = native.cast(x, native.dtype.float32) if x.itemsize == 2 else x
    mean = native.sum(wide, (0, 2), True) / 6.0
    rstd = native.rsqrt(native.sum(native.square(wide - mean), (0, 2), True) / 6.0 + 1e-3)
    statistics = [native.reshape(each, (4,)) for each in (mean, rstd)]
    gx, gw, gb = native.channel_norm_backward([g, x, *statistics, *weight], (), (0,), 0.0, False)
    return native.concat([native.reshape(native.permute(gx, (1, 0, 2)), (-1,)), gw, gb], 0)


def _entry(name: str, *inputs: Any, shape: Any = (), ignored: Any = (), number: float = 0.0) -> Any:
    """All outputs of a backward entry, flat and one behind the other."""
    found = getattr(native, name)(list(inputs), shape, ignored, number, True)
    return found[0] if len(found) == 1 else native.concat([native.reshape(x, (-1,)) for x in found], 0)


def _norm_backward(g: Any, x: Any, *weight: Any) -> Any:
    wide = native.cast(x, native.dtype.float32) if x.itemsize == 2 else x
    mean = native.sum(wide, -1, True) / float(x.shape[-1])
    variance = native.sum(native.square(wide - mean), -1, True) / float(x.shape[-1])
    return _entry("layer_norm_backward", g, x, mean, native.rsqrt(variance + 1e-3), *weight, shape=(7,))


_TARGET = [2, 0, -100, 4]
_WEIGHT = [0.5, 1.0, 2.0, 0.25, 1.5]


def _cross_entropy(x: Any, weight: Any, smoothing: float) -> Any:
    logs = np.log(_softmax(x, -1))
    rows = [
        0.0 if t < 0 else -(1 - smoothing) * weight[t] * row[t] - smoothing / len(row) * np.sum(weight * row)
        for t, row in zip(_TARGET, logs, strict=True)
    ]
    return np.array(rows)


def _cross_entropy_gradient(g: Any, x: Any, weight: Any, smoothing: float) -> Any:
    constants = np.tile(smoothing / x.shape[1] * weight, (len(x), 1))
    for row, t in zip(constants, _TARGET, strict=True):
        row[t if t >= 0 else slice(None)] += (1 - smoothing) * weight[t] if t >= 0 else -row
    return g[:, None] * (constants.sum(-1, keepdims=True) * _softmax(x, -1) - constants)


def _cross_entropy_backward(g: Any, x: Any, smoothing: float, *weight: Any) -> Any:
    wide = native.cast(x, native.dtype.float32) if x.itemsize == 2 else x
    lse = native.log(native.sum(native.exp(wide), -1))
    target = native.asarray(_TARGET)
    return _entry("cross_entropy_backward", g, x, target, lse, *weight, ignored=(-100,), number=smoothing)


def _slope(name: str, reference: Any, *constant: float, **options: Any) -> Sample:
    """Sample of a backward entry: gradient, and what the slope follows from."""
    call = getattr(native, name)
    return Sample(lambda g, x: call(g, x, *constant), reference, ((3, 4), (3, 4)), **options)


def _density(x: Any) -> Any:
    return np.exp(-x * x / 2) / np.sqrt(2 * np.pi)


def _tanh_share(x: Any) -> Any:
    return 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def _slope_of(function: Any, x: Any) -> Any:
    """Derivative by a complex step."""
    return np.imag(function(np.asarray(x, np.complex128) + 1e-40j)) / 1e-40


_OPEN: dict[str, Any] = {"complexes": True}
_BENT = {"apart": 0.3}
_REAL: dict[str, Any] = {"integers": False}
_KINK: dict[str, Any] = {"apart": 0.1, "integers": False}

SAMPLES: dict[str, list[Sample]] = {
    "negative": _one("negative", np.negative, **_OPEN),
    "positive": _one("positive", np.positive, **_OPEN),
    "abs": _one("abs", np.abs, complexes=True, apart=0.1),
    "sign": _one("sign", _sign, apart=0.1),
    "square": _one("square", np.square, **_OPEN),
    "reciprocal": _one("reciprocal", np.reciprocal, low=0.5, high=3, complexes=True, integers=False),
    "sqrt": _one("sqrt", np.sqrt, low=0.3, high=3, complexes=True),
    "rsqrt": _one("rsqrt", lambda x: 1 / np.sqrt(x), low=0.3, high=3, complexes=True),
    "exp": _one("exp", np.exp, **_OPEN),
    "exp2": _one("exp2", np.exp2),
    "expm1": _one("expm1", np.expm1, **_OPEN),
    "log": _one("log", np.log, low=0.3, high=3, complexes=True),
    "log2": _one("log2", np.log2, low=0.3, high=3, complexes=True),
    "log10": _one("log10", np.log10, low=0.3, high=3, complexes=True),
    "log1p": _one("log1p", np.log1p, low=-0.6, high=3, complexes=True),
    "sin": _one("sin", np.sin, **_OPEN),
    "cos": _one("cos", np.cos, **_OPEN),
    "tan": _one("tan", np.tan, low=-1, high=1, complexes=True),
    "asin": _one("asin", np.arcsin, low=-0.8, high=0.8, complexes=True),
    "acos": _one("acos", np.arccos, low=-0.8, high=0.8, complexes=True),
    "atan": _one("atan", np.arctan, low=-0.8, high=0.8, complexes=True),
    "sinh": _one("sinh", np.sinh, **_OPEN),
    "cosh": _one("cosh", np.cosh, **_OPEN),
    "tanh": _one("tanh", np.tanh, low=-1, high=1, complexes=True),
    "asinh": _one("asinh", np.arcsinh, low=-0.8, high=0.8, complexes=True),
    "acosh": _one("acosh", np.arccosh, low=1.2, high=3),
    "atanh": _one("atanh", np.arctanh, low=-0.8, high=0.8, complexes=True),
    "sigmoid": _one("sigmoid", _sigmoid, low=-1, high=1, complexes=True),
    "erf": _one("erf", scipy.special.erf),
    "erfc": _one("erfc", scipy.special.erfc),
    "erfinv": _one("erfinv", scipy.special.erfinv, low=-0.9, high=0.9),
    "lgamma": _one("lgamma", scipy.special.gammaln, low=0.3, high=5),
    "digamma": _one("digamma", scipy.special.digamma, low=0.3, high=5),
    "floor": _one("floor", np.floor, **_BENT),
    "ceil": _one("ceil", np.ceil, **_BENT),
    "trunc": _one("trunc", np.trunc, **_BENT),
    "round": _one("round", np.round, **_BENT),
    "relu": _one("relu", lambda x: np.maximum(x, np.zeros_like(x)), **_BENT),
    "gelu": _one("gelu", lambda x: x * scipy.special.ndtr(x), **_REAL),
    "gelu_tanh": _one("gelu_tanh", lambda x: x * _tanh_share(x), **_REAL),
    "silu": _one("silu", lambda x: x * _sigmoid(x), **_REAL),
    "mish": _one("mish", lambda x: x * np.tanh(np.logaddexp(x, 0)), **_REAL),
    "elu": [
        Sample(
            lambda x: native.elu(x, 0.7), lambda x: np.where(x > 0, x, 0.7 * np.expm1(x)), ((3, 4),), **_KINK
        )
    ],
    "leaky_relu": _two("leaky_relu", lambda x, y: np.where(x > 0, x, x * y), **_KINK),
    "relu_backward": [_slope("relu_backward", lambda g, y: np.where(y <= 0, 0, g), **_KINK)],
    "gelu_backward": [
        _slope("gelu_backward", lambda g, x: g * (scipy.special.ndtr(x) + x * _density(x)), **_REAL)
    ],
    "gelu_tanh_backward": [
        _slope("gelu_tanh_backward", lambda g, x: g * _slope_of(lambda v: v * _tanh_share(v), x), **_REAL)
    ],
    "silu_backward": [
        _slope("silu_backward", lambda g, x: g * _sigmoid(x) * (1 + x * (1 - _sigmoid(x))), **_REAL)
    ],
    "elu_backward": [
        _slope("elu_backward", lambda g, x: np.where(x <= 0, g * 0.7 * np.exp(x), g), 0.7, **_KINK)
    ],
    "leaky_relu_backward": [
        _slope("leaky_relu_backward", lambda g, x: np.where(x > 0, g, g * 0.1), 0.1, **_KINK)
    ],
    "softplus": [
        Sample(
            lambda x: native.softplus(x, 2.0, 1.5),
            lambda x: np.where(2 * x > 1.5, x, np.log1p(np.exp(2 * x)) / 2),
            ((3, 4),),
            apart=0.1,
            integers=False,
        )
    ],
    "conj": _one("conj", np.conj, **_OPEN),
    "real": _one("real", np.real, **_OPEN),
    "imag": _one("imag", np.imag, complexes=True, integers=False),
    "angle": _one("angle", np.angle, low=0.3, high=2, complexes=True, integers=False),
    "isnan": _one("isnan", np.isnan, **_OPEN),
    "isinf": _one("isinf", np.isinf, **_OPEN),
    "isfinite": _one("isfinite", np.isfinite, **_OPEN),
    "signbit": _one("signbit", np.signbit, **_REAL),
    "logical_not": _one("logical_not", np.logical_not, **_OPEN),
    "bitwise_not": _one("bitwise_not", np.bitwise_not),
    "add": _two("add", np.add, **_OPEN),
    "subtract": _two("subtract", np.subtract, **_OPEN),
    "multiply": _two("multiply", np.multiply, **_OPEN),
    "divide": _two("divide", np.divide, low=0.4, high=3, complexes=True),
    "floor_divide": _two("floor_divide", np.floor_divide, low=1, high=9, apart=0.1),
    "remainder": _two("remainder", np.remainder, low=1, high=9, apart=0.1),
    "fmod": _two("fmod", np.fmod, low=1, high=9, apart=0.1),
    "pow": _two("pow", np.power, low=0.4, high=2.5, complexes=True),
    "maximum": _two("maximum", np.maximum, **_BENT),
    "minimum": _two("minimum", np.minimum, **_BENT),
    "fmax": _two("fmax", np.fmax, **_BENT),
    "fmin": _two("fmin", np.fmin, **_BENT),
    "atan2": _two("atan2", np.arctan2, low=0.3, high=2, integers=False),
    "hypot": _two("hypot", np.hypot, low=0.3, high=2, integers=False),
    "copysign": _two("copysign", np.copysign, apart=0.1, integers=False),
    "nextafter": _two("nextafter", np.nextafter, **_REAL),
    "logaddexp": _two("logaddexp", np.logaddexp, **_REAL),
    "xlogy": _two("xlogy", scipy.special.xlogy, low=0.3, high=2, integers=False),
    "heaviside": _two("heaviside", np.heaviside, apart=0.1, integers=False),
    "equal": _two("equal", np.equal, **_OPEN),
    "not_equal": _two("not_equal", np.not_equal, **_OPEN),
    "less": _two("less", np.less),
    "less_equal": _two("less_equal", np.less_equal),
    "greater": _two("greater", np.greater),
    "greater_equal": _two("greater_equal", np.greater_equal),
    "logical_and": _two("logical_and", np.logical_and, **_OPEN),
    "logical_or": _two("logical_or", np.logical_or, **_OPEN),
    "logical_xor": _two("logical_xor", np.logical_xor, **_OPEN),
    "bitwise_and": _two("bitwise_and", np.bitwise_and),
    "bitwise_or": _two("bitwise_or", np.bitwise_or),
    "bitwise_xor": _two("bitwise_xor", np.bitwise_xor),
    "bitwise_left_shift": _two("bitwise_left_shift", np.left_shift, low=0, high=4),
    "bitwise_right_shift": _two("bitwise_right_shift", np.right_shift, low=0, high=4),
    "complex": _two("complex", lambda x, y: x + 1j * y, integers=False),
    "clip": [
        Sample(
            native.clip,
            lambda x, low, high: np.minimum(np.maximum(x, low), high),
            ((3, 4), (1, 4), (3, 1)),
            apart=0.3,
            broadcasts=True,
        )
    ],
    "hardtanh": [
        Sample(
            lambda x: native.hardtanh(x, -0.5, 0.6),
            lambda x: np.minimum(np.maximum(x, -0.5), 0.6),
            ((3, 4),),
            **_KINK,
        )
    ],
    "keep_above": [_slope("keep_above", lambda g, x: np.where(x <= 0.2, 0, g), 0.2, **_KINK)],
    "keep_below": [_slope("keep_below", lambda g, x: np.where(x >= 0.2, 0, g), 0.2, **_KINK)],
    "binary_cross_entropy": [
        Sample(
            native.binary_cross_entropy,
            lambda x, y: (y - 1) * np.maximum(np.log1p(-x), -100) - y * np.maximum(np.log(x), -100),
            ((3, 4), (3, 4)),
            low=0.1,
            high=0.9,
            integers=False,
        )
    ],
    "binary_cross_entropy_backward": [
        Sample(
            native.binary_cross_entropy_backward,
            lambda g, x, y: g * (x - y) / np.maximum(x * (1 - x), 1e-12),
            ((3, 4), (3, 4), (3, 4)),
            low=0.1,
            high=0.9,
            integers=False,
        )
    ],
    "clip_backward": [
        Sample(
            lambda g, x: native.clip_backward(g, x, native.clip(x.detach(), -0.5, 0.6)),
            lambda g, x: np.where((x >= -0.5) & (x <= 0.6), g, 0),
            ((3, 4), (3, 4)),
            **_KINK,
        )
    ],
    "lerp": [
        Sample(
            native.lerp,
            lambda x, y, w: x + w * (y - x),
            ((3, 4), (3, 4), (4,)),
            complexes=True,
            integers=False,
            broadcasts=True,
        )
    ],
    "addcmul": [
        Sample(
            native.addcmul,
            lambda x, y, z: x + y * z,
            ((3, 4), (3, 4), (3, 1)),
            complexes=True,
            broadcasts=True,
        )
    ],
    "where": [
        Sample(
            native.where,
            np.where,
            ((3, 4), (3, 4), (4,)),
            complexes=True,
            broadcasts=True,
            fixed={0: np.arange(12).reshape(3, 4) % 3 > 0},
        )
    ],
    "cast": [Sample(lambda x: native.cast(x, x.dtype), np.array, ((3, 4),), complexes=True)],
    "reshape": [Sample(lambda x: native.reshape(x, (2, -1)), lambda x: x.reshape(2, -1), ((3, 4),), **_OPEN)],
    "expand": [
        Sample(
            lambda x: native.expand(x, (2, 3, 4)), lambda x: np.broadcast_to(x, (2, 3, 4)), ((3, 1),), **_OPEN
        )
    ],
    "permute": [
        Sample(
            lambda x: native.permute(x, (2, 0, 1)),
            lambda x: np.transpose(x, (2, 0, 1)),
            ((2, 3, 4),),
            **_OPEN,
        )
    ],
    "slice": [Sample(lambda x: x[1:, ::-2], lambda x: x[1:, ::-2], ((3, 5),), **_OPEN)],
    "unslice": [
        Sample(
            lambda x: native.unslice(x, (4, 7), (1, 0), (1, 2)), lambda x: _unsliced(x), ((2, 3),), **_OPEN
        )
    ],
    "flip": [Sample(lambda x: native.flip(x, (0, 2)), lambda x: np.flip(x, (0, 2)), ((2, 3, 4),), **_OPEN)],
    "as_strided": [
        Sample(
            lambda x: native.as_strided(x, (2, 2), (1, 2), 1),
            lambda x: np.lib.stride_tricks.as_strided(
                np.ascontiguousarray(x).reshape(-1)[1:], (2, 2), (x.itemsize, 2 * x.itemsize)
            ),
            ((3, 4),),
            **_OPEN,
        )
    ],
    "strided_scatter": [
        Sample(
            lambda x: native.strided_scatter(x, (3, 4), (4, 1), 2),
            lambda x: _scattered(x),
            ((2, 2),),
            **_OPEN,
        )
    ],
    "concat": [
        Sample(
            lambda x, y: native.concat([x, y], 1),
            lambda x, y: np.concatenate([x, y], 1),
            ((2, 3), (2, 1)),
            **_OPEN,
        )
    ],
    "take": [
        Sample(
            lambda x: native.take(x, native.asarray([[0, 2], [2, 1]]), 1),
            lambda x: np.take(x, [[0, 2], [2, 1]], 1),
            ((2, 3, 2),),
            **_OPEN,
        )
    ],
    "take_add": [
        Sample(
            lambda x: native.take_add(x, native.asarray([0, 2, 0]), (4, 2), 0),
            lambda x: _added(x),
            ((3, 2),),
            **_OPEN,
        )
    ],
    "put": [
        Sample(
            lambda x, y: native.put(x, native.asarray([2, 0]), y, 0),
            lambda x, y: _put(x, y),
            ((3, 2), (2, 2)),
            **_OPEN,
        )
    ],
    "take_along": [
        Sample(
            lambda x: native.take_along_axis(x, native.asarray([[0, 2, 1], [1, 1, 0]]), 1),
            lambda x: np.take_along_axis(x, np.array([[0, 2, 1], [1, 1, 0]]), 1),
            ((2, 3),),
            **_OPEN,
        )
    ],
    "scatter_add": [
        Sample(
            lambda x, y: native.scatter_add(x, native.asarray([[0, 1, 0], [1, 1, 1]]), y, 0),
            lambda x, y: _scatter_added(x, y),
            ((2, 3), (2, 3)),
            **_OPEN,
        )
    ],
    "matmul": [
        Sample(native.matmul, np.matmul, ((3, 4), (4, 2)), **_OPEN),
        Sample(native.matmul, np.matmul, ((2, 1, 3, 4), (5, 4, 2)), **_OPEN),
        Sample(native.matmul, np.matmul, ((4,), (2, 4, 3)), **_OPEN),
    ],
    "sum": [
        Sample(lambda x: native.sum(x, (0, 2)), lambda x: np.sum(x, (0, 2)), ((2, 3, 4),), **_OPEN),
        Sample(native.sum, np.sum, ((2, 3),), **_OPEN),
    ],
    "prod": [Sample(lambda x: native.prod(x, (0, 2)), lambda x: np.prod(x, (0, 2)), ((2, 3, 2),), **_OPEN)],
    "max": [Sample(lambda x: native.max(x, 1), lambda x: np.max(x, 1), ((3, 4),), apart=0.1)],
    "min": [
        Sample(
            lambda x: native.min(x, (0, 1), True),
            lambda x: np.min(x, (0, 1), keepdims=True),
            ((3, 4),),
            apart=0.1,
        )
    ],
    "any": [Sample(lambda x: native.any(x, 1), lambda x: np.any(x, 1), ((3, 4),), **_OPEN)],
    "all": [Sample(lambda x: native.all(x, 0), lambda x: np.all(x, 0), ((3, 4),), **_OPEN)],
    "cumsum": [Sample(lambda x: native.cumsum(x, 1), lambda x: np.cumsum(x, 1), ((3, 4, 2),), **_OPEN)],
    "cumprod": [
        Sample(lambda x: native.cumprod(x, 1), lambda x: np.cumprod(x, 1), ((3, 4),), **_OPEN),
        Sample(
            lambda x: native.cumprod(native.multiply(x, native.asarray([[1.0, 0, 2, 0]], x.dtype)), 1),
            lambda x: np.cumprod(x * np.array([[1.0, 0, 2, 0]]), 1),
            ((3, 4),),
            integers=False,
        ),
    ],
    "linear": [
        Sample(
            lambda x, w, b: native.linear(x, w, b),
            lambda x, w, b: x @ w.T + b,
            ((2, 3, 4), (5, 4), (5,)),
            complexes=True,
            integers=False,
        ),
        Sample(lambda x, w: native.linear(x, w, None), lambda x, w: x @ w.T, ((4,), (2, 4)), **_REAL),
    ],
    "softmax": [
        Sample(lambda x: native.softmax(x, -1), lambda x: _softmax(x, -1), ((3, 7),), **_REAL),
        Sample(lambda x: native.softmax(x, 1), lambda x: _softmax(x, 1), ((2, 5, 3),), **_REAL),
    ],
    "log_softmax": [
        Sample(lambda x: native.log_softmax(x, -1), lambda x: np.log(_softmax(x, -1)), ((3, 7),), **_REAL),
        Sample(lambda x: native.log_softmax(x, 0), lambda x: np.log(_softmax(x, 0)), ((5, 3),), **_REAL),
    ],
    "softmax_backward": [
        Sample(
            lambda g, y: _entry("softmax_backward", g, y),
            lambda g, y: y * (g - (g * y).sum(-1, keepdims=True)),
            ((3, 7), (3, 7)),
            **_REAL,
        )
    ],
    "log_softmax_backward": [
        Sample(
            lambda g, y: _entry("log_softmax_backward", g, y),
            lambda g, y: g - np.exp(y) * g.sum(-1, keepdims=True),
            ((3, 7), (3, 7)),
            low=-2,
            high=-0.1,
            **_REAL,
        )
    ],
    "layer_norm": [
        Sample(
            lambda x, w, b: native.layer_norm(x, (2, 5), w, b, 1e-3, True),
            lambda x, w, b: _normal(x, (-2, -1)) * w + b,
            ((3, 2, 5), (2, 5), (2, 5)),
            **_REAL,
        ),
        Sample(
            lambda x: native.layer_norm(x, (7,), None, None, 1e-3, True),
            lambda x: _normal(x, -1),
            ((3, 7),),
            **_REAL,
        ),
        Sample(
            lambda x, w: native.layer_norm(x, (7,), w, None, 1e-3, False),
            lambda x, w: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-3) * w,
            ((3, 7), (7,)),
            **_REAL,
        ),
    ],
    "layer_norm_backward": [
        Sample(lambda g, x, w: _norm_backward(g, x, w), _normal_gradients, ((3, 7), (3, 7), (7,)), **_REAL),
        Sample(
            lambda g, x: _norm_backward(g, x),
            lambda g, x: _normal_gradients(g, x, np.ones(7))[:21],
            ((3, 7), (3, 7)),
            **_REAL,
        ),
    ],
    "channel_norm": [
        Sample(
            lambda x, w, b: native.channel_norm(x, 2, w, b, 1e-3)[0],
            lambda x, w, b: _group_normal(x) * w[:, None] + b[:, None],
            ((2, 4, 3), (4,), (4,)),
            **_REAL,
        ),
        Sample(
            lambda x, w: native.channel_norm(x, 0, w, None, 1e-3)[0],
            lambda x, w: _normal(x, (0, 2)) * w[:, None],
            ((2, 4, 3), (4,)),
            **_REAL,
        ),
        Sample(
            lambda x: native.channel_norm(x, 0, None, None, 1e-3)[0],
            lambda x: _normal(x, (0, 2)),
            ((3, 2, 2),),
            **_REAL,
        ),
    ],
    "channel_norm_backward": [
        Sample(
            lambda g, x, w: _channel_backward(g, x, w),
            lambda g, x, w: _normal_gradients(_channel_rows(g), _channel_rows(x), w[:, None], True),
            ((2, 4, 3), (2, 4, 3), (4,)),
            **_REAL,
        ),
        Sample(
            lambda g, x: _channel_backward(g, x),
            lambda g, x: _normal_gradients(_channel_rows(g), _channel_rows(x), 1.0, True),
            ((2, 4, 3), (2, 4, 3)),
            **_REAL,
        ),
    ],
    "cross_entropy": [
        Sample(
            lambda x: native.cross_entropy(x, native.asarray(_TARGET), None, -100, 0.0)[0],
            lambda x: _cross_entropy(x, np.ones(5), 0.0),
            ((4, 5),),
            **_REAL,
        ),
        Sample(
            lambda x: native.cross_entropy(
                x, native.asarray(_TARGET), native.asarray(_WEIGHT, x.dtype), -100, 0.2
            )[0],
            lambda x: _cross_entropy(x, np.array(_WEIGHT), 0.2),
            ((4, 5),),
            **_REAL,
        ),
    ],
    "cross_entropy_backward": [
        Sample(
            lambda g, x: _cross_entropy_backward(g, x, 0.0),
            lambda g, x: _cross_entropy_gradient(g, x, np.ones(5), 0.0),
            ((4,), (4, 5)),
            **_REAL,
        ),
        Sample(
            lambda g, x: _cross_entropy_backward(g, x, 0.2, native.asarray(_WEIGHT, x.dtype)),
            lambda g, x: _cross_entropy_gradient(g, x, np.array(_WEIGHT), 0.2),
            ((4,), (4, 5)),
            **_REAL,
        ),
    ],
}
"""By the name of the entry."""

WRITTEN_ELSEWHERE = {
    "write_view": "tests/tensora/test_in_place.py",
    "to_device": "tests/tensora/test_cuda.py",
    "wrap_index": "tests/tensora/test_jit.py",
}
"""Entries that only assignments to views or captured functions record, or that take a device, and where they
are tested."""


def _unsliced(x: Any) -> Any:
    out = np.zeros((4, 7), x.dtype)
    out[1:3, 0:5:2] = x
    return out


def _scattered(x: Any) -> Any:
    out = np.zeros(12, x.dtype)
    out[[2, 3, 6, 7]] = x.reshape(-1)
    return out.reshape(3, 4)


def _added(x: Any) -> Any:
    out = np.zeros((4, 2), x.dtype)
    np.add.at(out, [0, 2, 0], x)
    return out


def _put(x: Any, y: Any) -> Any:
    out = x.copy()
    out[[2, 0]] = y
    return out


def _scatter_added(x: Any, y: Any) -> Any:
    out = x.copy()
    for i, row in enumerate([[0, 1, 0], [1, 1, 1]]):
        for j, at in enumerate(row):
            out[at, j] = out[at, j] + y[i, j]
    return out
