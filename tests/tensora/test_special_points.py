"""Gradients at special points: zeros, kinks, bounds, equal operands, saturation, infinities and NaN.

Each differentiable elementwise operation, activation, loss and norm is compared with PyTorch in float64.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import accelera.tensora as ts
from accelera.tensora import functional, special

TF = torch.nn.functional
INF, NAN = float("inf"), float("nan")

POINTS = np.array(
    [
        *(0.0, -0.0, 0.25, -0.25, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 6.0, -6.0, 20.0, -20.0),
        *(41.0, -41.0, 800.0, -800.0, 1e-300, -1e-300, INF, -INF, NAN),
    ]
)
"""Kinks and bounds of the activations below are among them."""


def _pairs(first: np.ndarray, second: np.ndarray) -> list[np.ndarray]:
    return [np.array(values) for values in zip(*itertools.product(first, second), strict=True)]


def _gradients(module: Any, function: Callable[..., Any], inputs: list[np.ndarray]) -> list[np.ndarray]:
    if module is torch:
        tensors = [torch.tensor(values, requires_grad=True) for values in inputs]
    else:
        tensors = [ts.tensor(values, requires_grad=True) for values in inputs]
    result = function(*tensors)
    weights = np.linspace(1, 2, result.numel() if module is torch else result.size)
    seeds = module.tensor(weights).reshape(tuple(result.shape))
    result.backward(seeds)
    grads = [np.zeros(x.shape) if x.grad is None else np.asarray(x.grad.detach()) for x in tensors]
    return [np.asarray(result.detach()), *grads]


def _differences(ours: Any, theirs: Any, inputs: list[np.ndarray], first: int = 0) -> list[str]:
    """Return the points at which results (0) or the gradients of an input (1, 2, ...) differ."""
    got, expected = _gradients(ts, ours, inputs), _gradients(torch, theirs, inputs)
    lines = []
    got, expected = ([np.atleast_1d(values) for values in side] for side in (got, expected))
    for place in range(first, len(got)):
        equal = np.isclose(got[place], expected[place], rtol=1e-6, atol=1e-12, equal_nan=True)
        for index in zip(*np.nonzero(~equal), strict=True):
            point = [float(x[index]) if x.shape == got[place].shape else x.tolist() for x in inputs]
            lines.append(f"{place} at {point}: {got[place][index]}, PyTorch {expected[place][index]}")
    return lines


ELEMENTWISE = """
    abs sign square sqrt rsqrt reciprocal exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan
    sinh cosh tanh asinh acosh atanh sigmoid erf erfc erfinv lgamma digamma sinc floor ceil trunc round i0
    logit nan_to_num
""".split()  # noqa: SIM905
SPECIAL = ["i0e", "i1", "i1e", "erfcx", "log_ndtr", "ndtr", "ndtri", "entr"]
ACTIVATIONS = """
    relu relu6 hardtanh hardsigmoid hardswish hardshrink softshrink leaky_relu elu celu selu gelu silu mish
    softplus softsign tanhshrink logsigmoid
""".split()  # noqa: SIM905
UNARY: dict[str, tuple[Any, Any]] = {name: (getattr(ts, name), getattr(torch, name)) for name in ELEMENTWISE}
UNARY |= {name: (getattr(special, name), getattr(torch.special, name)) for name in SPECIAL}
UNARY |= {name: (getattr(functional, name), getattr(TF, name)) for name in ACTIVATIONS}
UNARY |= {
    "gelu_tanh": (lambda x: functional.gelu(x, "tanh"), lambda x: TF.gelu(x, approximate="tanh")),
    "hardtanh of bounds": (lambda x: functional.hardtanh(x, -0.5, 2.0), lambda x: TF.hardtanh(x, -0.5, 2.0)),
    "softshrink of 2": (lambda x: functional.softshrink(x, 2.0), lambda x: TF.softshrink(x, 2.0)),
    "softshrink of 0": (lambda x: functional.softshrink(x, 0.0), lambda x: TF.softshrink(x, 0.0)),
    "hardshrink of 3": (lambda x: functional.hardshrink(x, 3.0), lambda x: TF.hardshrink(x, 3.0)),
    "threshold": (lambda x: functional.threshold(x, 1.0, 5.0), lambda x: TF.threshold(x, 1.0, 5.0)),
    "celu of 2": (lambda x: functional.celu(x, 2.0), lambda x: TF.celu(x, 2.0)),
    "elu of 0.5": (lambda x: functional.elu(x, 0.5), lambda x: TF.elu(x, 0.5)),
    "leaky_relu of 0.2": (lambda x: functional.leaky_relu(x, 0.2), lambda x: TF.leaky_relu(x, 0.2)),
    "softplus of 2, 6": (lambda x: functional.softplus(x, 2.0, 6.0), lambda x: TF.softplus(x, 2.0, 6.0)),
    "clip": (lambda x: ts.clip(x, -1.0, 3.0), lambda x: torch.clip(x, -1.0, 3.0)),
    "clip below": (lambda x: ts.clip(x, -1.0), lambda x: torch.clip(x, -1.0)),
    "x ** 2.0": (lambda x: x**2.0, lambda x: x**2.0),
    "x ** 3": (lambda x: x**3, lambda x: x**3),
    "x ** 1": (lambda x: x**1, lambda x: x**1),
    "x ** 0": (lambda x: x**0, lambda x: x**0),
    "x ** 0.5": (lambda x: x**0.5, lambda x: x**0.5),
    "x ** -1": (lambda x: x**-1, lambda x: x**-1),
    "2 ** x": (lambda x: 2.0**x, lambda x: 2.0**x),
    "0 ** x": (lambda x: 0.0**x, lambda x: 0.0**x),
    "1 / x": (lambda x: 1.0 / x, lambda x: 1.0 / x),
    "multigammaln": (lambda x: special.multigammaln(x, 1), lambda x: torch.special.multigammaln(x, 1)),
}
TWO_OPERANDS = """
    pow maximum minimum fmax fmin atan2 hypot copysign logaddexp xlogy remainder fmod add subtract multiply
    divide
""".split()  # noqa: SIM905
BINARY: dict[str, tuple[Any, Any]] = {
    name: (getattr(ts, name), getattr(torch, name)) for name in TWO_OPERANDS
}
BINARY |= {
    "xlog1py": (special.xlog1py, torch.special.xlog1py),
    "clip by tensors": (lambda x, y: ts.clip(x, y, y + 1.0), lambda x, y: torch.clip(x, y, y + 1.0)),
}
LOSSES: dict[str, dict[str, Any]] = {
    "l1_loss": {},
    "mse_loss": {},
    "smooth_l1_loss": {"beta": 1.0},
    "huber_loss": {"delta": 2.0},
    "binary_cross_entropy": {},
    "binary_cross_entropy_with_logits": {},
    "soft_margin_loss": {},
    "hinge_embedding_loss": {"margin": 1.0},
    "kl_div": {},
    "poisson_nll_loss": {},
}
PROBABILITIES = np.array([0.0, -0.0, 1.0, 0.5, 0.25, 1e-300, 1e-13, 1 - 2**-53, 1 - 1e-12])

UNDEFINED: dict[str, Callable[..., Any]] = {
    # A NaN operand: PyTorch's gradient is a number for these, ours NaN (or the other way around).
    "abs": np.isnan,
    "i1": np.isnan,
    "i1e": np.isnan,
    "hardsigmoid": np.isnan,
    "hardswish": np.isnan,
    # Poles, overflow, and points outside of the domain.
    "digamma": lambda x: (x < 0) & (x == np.floor(x)),
    "entr": lambda x: x == INF,
    "log_ndtr": lambda x: x == -INF,
    "x ** 0.5": lambda x: ((x == 0) & np.signbit(x)) | (x == -INF),
    "multigammaln": lambda x: x == 0,
}
"""Points at which the gradients deliberately differ from PyTorch's."""


def _without(name: str, inputs: list[np.ndarray]) -> list[np.ndarray]:
    if name not in UNDEFINED:
        return inputs
    kept = ~UNDEFINED[name](*inputs)
    return [values[kept] for values in inputs]


@pytest.mark.parametrize("name", UNARY)
def test_unary_gradients_at_special_points(name):
    assert not _differences(*UNARY[name], _without(name, [POINTS]), first=1)


@pytest.mark.parametrize("name", BINARY)
def test_binary_gradients_at_special_points(name):
    assert not _differences(*BINARY[name], _without(name, _pairs(POINTS, POINTS)), first=1)


@pytest.mark.parametrize("name", LOSSES)
def test_loss_gradients_at_special_points(name):
    finite = POINTS[np.isfinite(POINTS)]
    inputs = _pairs(PROBABILITIES if name == "binary_cross_entropy" else finite, PROBABILITIES)
    if name in ("soft_margin_loss", "hinge_embedding_loss"):
        inputs = _pairs(finite[np.abs(finite) < 700], np.array([-1.0, 1.0]))  # PyTorch overflows beyond
    ours, theirs = (
        lambda x, module=module: getattr(module, name)(
            x, (ts if module is functional else torch).tensor(inputs[1]), reduction="none", **LOSSES[name]
        )
        for module in (functional, TF)
    )
    assert not _differences(ours, theirs, inputs[:1])


@pytest.mark.parametrize("name", ["smooth_l1_loss", "huber_loss", "l1_loss", "mse_loss"])
def test_loss_gradients_by_the_target(name):
    inputs = _pairs(POINTS[~np.isnan(POINTS)], PROBABILITIES)
    ours, theirs = (
        lambda x, y, module=module: getattr(module, name)(x, y, reduction="none", **LOSSES[name])
        for module in (functional, TF)
    )
    assert not _differences(ours, theirs, inputs)


@pytest.mark.parametrize("logit", [-800.0, -120.0, -40.0, 0.0, 18.0, 25.0, 40.0, 120.0])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_cross_entropy_after_a_saturated_sigmoid(logit, dtype):
    for target in (0.0, 0.3, 1.0):
        grads = []
        for module, losses in ((ts, functional), (torch, TF)):
            kind = getattr(module, "float32" if dtype == "float16" else dtype)
            x = module.tensor([logit, 0.5], dtype=kind, requires_grad=True)
            losses.binary_cross_entropy(
                module.sigmoid(x), module.tensor([target, 1.0], dtype=kind)
            ).backward()
            grads.append(np.asarray(x.grad))
        np.testing.assert_allclose(grads[0], grads[1], rtol=1e-4, atol=1e-9)


STATISTICS: dict[str, tuple[Any, Any]] = {
    "std": (lambda x: ts.std(x, axis=1), lambda x: x.std(1, correction=0)),
    "std of all": (lambda x: ts.std(x, correction=1), lambda x: x.std()),
    "std with keepdims": (
        lambda x: ts.std(x, axis=(0, 1), keepdims=True),
        lambda x: x.std((0, 1), correction=0, keepdim=True),
    ),
    "std_mean": (lambda x: ts.std_mean(x, axis=0)[0], lambda x: torch.std_mean(x, 0, correction=0)[0]),
    "var": (lambda x: ts.var(x, axis=1, correction=1), lambda x: x.var(1)),
    "norm": (lambda x: ts.linalg.vector_norm(x, axis=1), lambda x: torch.linalg.vector_norm(x, dim=1)),
    "norm of order 3": (
        lambda x: ts.linalg.vector_norm(x, ord=3, axis=1),
        lambda x: torch.linalg.vector_norm(x, 3, dim=1),
    ),
    "norm of order 1": (
        lambda x: ts.linalg.vector_norm(x, ord=1, axis=1),
        lambda x: torch.linalg.vector_norm(x, 1, dim=1),
    ),
    "largest modulus": (
        lambda x: ts.linalg.vector_norm(x, ord=INF, axis=1),
        lambda x: torch.linalg.vector_norm(x, INF, dim=1),
    ),
    "matrix norm": (ts.linalg.matrix_norm, torch.linalg.matrix_norm),
    "max": (lambda x: ts.max(x, axis=1), lambda x: x.amax(1)),
    "min of all": (ts.min, lambda x: x.amin()),
    "logsumexp": (lambda x: ts.logsumexp(x, axis=1), lambda x: x.logsumexp(1)),
    "prod": (lambda x: ts.prod(x, axis=1), lambda x: x.prod(1)),
    "cumulative_prod": (lambda x: ts.cumulative_prod(x, axis=1), lambda x: x.cumprod(1)),
    "normalize": (functional.normalize, TF.normalize),
    "distance": (
        lambda x: functional.pairwise_distance(x, x[:1] * 1.0),
        lambda x: TF.pairwise_distance(x, x[:1] * 1.0),
    ),
    "cosine": (
        lambda x: functional.cosine_similarity(x, x * 2.0),
        lambda x: TF.cosine_similarity(x, x * 2.0),
    ),
    "softmax": (functional.softmax, lambda x: TF.softmax(x, -1)),
    "layer_norm": (lambda x: functional.layer_norm(x, (5,)), lambda x: TF.layer_norm(x, (5,))),
}


@pytest.mark.parametrize("value", [0.0, -0.0, -2.5, 1e8, 2.0**-100])
@pytest.mark.parametrize("name", STATISTICS)
def test_statistics_of_equal_values(name, value):
    rows = np.full((3, 5), value)
    assert not _differences(*STATISTICS[name], [rows])


@pytest.mark.parametrize("value", [0.1, 1 / 3, 3e5, -7.7])
@pytest.mark.parametrize("count", [3, 1000, 4097])
def test_std_of_equal_float32_values_is_flat(value, count):
    x = ts.tensor(np.full((2, count), value, np.float32), requires_grad=True)
    spread = ts.std(x, axis=1, correction=1)
    (spread * 3 + ts.var(x, axis=1)).sum().backward()
    assert spread.tolist() == [0.0, 0.0]
    assert not np.asarray(x.grad).any()


def test_gradient_of_the_angle_of_complex_numbers():
    values = np.array([0.0, -0.0, 1.0, -1.0, 0.5])
    inputs = _pairs(values, values)
    ours, theirs = (lambda x, y, module=module: module.angle(module.complex(x, y)) for module in (ts, torch))
    assert not _differences(ours, theirs, inputs)


EXPONENTIAL_UNITS: dict[str, tuple[Any, Any]] = {
    name: pair for name, pair in UNARY.items() if name.partition(" ")[0] in ("elu", "celu", "selu")
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", EXPONENTIAL_UNITS)
def test_gradients_of_exponential_units_do_not_cancel(name, dtype):
    points = np.concatenate([np.linspace(-80, 2, 165), -np.logspace(-30, 2.2, 60)]).astype(dtype)
    points = points[points > (-85 if dtype == "float32" else -700)].astype("float64")
    ours, theirs = EXPONENTIAL_UNITS[name]
    x = ts.tensor(points.tolist(), dtype=getattr(ts, dtype), requires_grad=True)
    (slope,) = ts.grad(ts.sum(ours(x)), x, create_graph=True)
    (curve,) = ts.grad(ts.sum(slope), x)
    y = torch.tensor(points, requires_grad=True)
    (expected_slope,) = torch.autograd.grad(theirs(y).sum(), y, create_graph=True)
    (expected_curve,) = torch.autograd.grad(expected_slope.sum(), y)
    tolerance = 1e-4 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(np.asarray(slope.detach()), expected_slope.detach(), rtol=tolerance)
    inside = points != 0
    np.testing.assert_allclose(np.asarray(curve)[inside], expected_curve[inside], rtol=tolerance)


@pytest.mark.parametrize("value", [150.0, 1e10, 1e20, 1e33, 3e38])
def test_gradient_of_gelu_tanh_is_a_number_far_out(value):
    x = ts.tensor([value, -value], dtype=ts.float32, requires_grad=True)
    functional.gelu(x, "tanh").sum().backward()
    assert x.grad.tolist() == [1.0, 0.0]
