"""Fused and contracting entries of the op table in JAX: products, convolutions, norms, losses, attention.

Gradients of fused operations are JAX's own, of the same function.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from accelera.tensora.lowering.program import ProgramStep, StepParams

HALVES = ("float16", "bfloat16")


def widened(x: Any) -> Any:
    """Return the array in the type to compute in: float32 for 16-bit floats."""
    return x.astype(jnp.float32) if x.dtype.name in HALVES else x


def matmul(step: ProgramStep, a: Any, b: Any) -> Any:
    """Product of matrices, in the type of the result."""
    dtype = step.outputs[0].dtype.name
    a, b = (widened(each.astype(dtype)) for each in (a, b))
    if dtype == "bool":
        return jnp.matmul(a.astype(jnp.int32), b.astype(jnp.int32)) != 0
    return jnp.matmul(a, b, precision="highest")


def linear(step: ProgramStep, x: Any, weight: Any, bias: Any = None) -> Any:
    """Rows of x times the transposed weight, and a bias."""
    dtype = step.outputs[0].dtype.name
    x, weight = (widened(each.astype(dtype)) for each in (x, weight))
    y = jnp.matmul(x, weight.T, precision="highest")
    return y if bias is None else y + bias


# --- convolutions: a: strides, b: padding, c: dilations; mode: groups


def _convolve(params: StepParams, x: Any, weight: Any) -> Any:
    n = len(params.a)
    dims = jax.lax.conv_dimension_numbers(x.shape, weight.shape, _layout(n))
    return jax.lax.conv_general_dilated(
        x,
        weight,
        params.a,
        [(each, each) for each in params.b],
        rhs_dilation=params.c[:n],
        dimension_numbers=dims,
        feature_group_count=params.mode,
        precision="highest",
    )


def _layout(n: int) -> tuple[str, str, str]:
    extents = "DHW"[3 - n :]
    return "NC" + extents, "OI" + extents, "NC" + extents


def conv(step: ProgramStep, x: Any, weight: Any, bias: Any = None) -> Any:
    """Convolution of images (N, C, extents...)."""
    y = _convolve(step.params, widened(x), widened(weight))
    return y if bias is None else y + bias.reshape((-1, *[1] * len(step.params.a)))


def conv_input(step: ProgramStep, y: Any, weight: Any) -> Any:
    """Gradient of a convolution's input; a transposed convolution."""
    weight, y = widened(weight), widened(y)
    return transposed(lambda x: _convolve(step.params, x, weight), step, y)


def conv_weight(step: ProgramStep, x: Any, y: Any) -> Any:
    """Gradient of a convolution's weight."""
    x, y = widened(x), widened(y)
    return transposed(lambda weight: _convolve(step.params, x, weight), step, y)


def transposed(function: Callable[[Any], Any], step: ProgramStep, y: Any) -> Any:
    """The transpose of a linear function, applied to y; of the shape of the step's result."""
    like = jnp.zeros(step.outputs[0].shape, y.dtype)
    return jax.linear_transpose(function, like)(y)[0]


# --- norms: x: eps


def layer_norm(step: ProgramStep, x: Any, weight: Any = None, bias: Any = None) -> Any:
    """Normalized last axes; with the mean of each row and the inverse of its deviation."""
    x = widened(x)
    axes = tuple(range(-len(step.params.a), 0))
    mean = jnp.mean(x, axes, keepdims=True)
    mean = mean if step.params.flag else jnp.zeros_like(mean)
    centred = x - mean
    rstd = 1 / jnp.sqrt(jnp.mean(centred * centred, axes, keepdims=True) + step.params.x)
    return _scaled(centred * rstd, weight, bias), mean, rstd


def layer_norm_backward(step: ProgramStep, g: Any, x: Any, mean: Any, rstd: Any, weight: Any = None) -> Any:
    """Gradients of input, weight and bias."""
    g, x = widened(g), widened(x)
    axes = tuple(range(-len(step.params.a), 0))
    rows = tuple(range(x.ndim - len(axes)))
    y = (x - mean) * rstd
    slopes = g if weight is None else g * widened(weight)
    gx = _norm_backward(slopes, y, rstd, axes, centred=step.params.flag)
    if weight is None:
        return gx, jnp.zeros((0,), x.dtype), jnp.zeros((0,), x.dtype)
    return gx, jnp.sum(g * y, rows), jnp.sum(g, rows)


def _norm_backward(g: Any, y: Any, rstd: Any, axes: tuple[int, ...], *, centred: bool) -> Any:
    """Return the gradient of a normalization's input, from the gradient g of its output y."""
    along = y * jnp.mean(g * y, axes, keepdims=True)
    offset = jnp.mean(g, axes, keepdims=True) if centred else 0
    return rstd * (g - offset - along)


def _scaled(y: Any, weight: Any, bias: Any) -> Any:
    if weight is not None:
        y = y * widened(weight)
    return y if bias is None else y + widened(bias)


def _to_rows(params: StepParams, x: Any) -> Any:
    """Reshape to (rows, elements): a row for each group of a sample's channels, or each channel if b is 0."""
    if params.b[0]:
        return x.reshape((x.shape[0] * params.b[0], -1))
    return jnp.moveaxis(x, 1, 0).reshape((x.shape[1], -1))


def _from_rows(params: StepParams, rows: Any, shape: tuple[int, ...]) -> Any:
    if params.b[0]:
        return rows.reshape(shape)
    return jnp.moveaxis(rows.reshape((shape[1], shape[0], *shape[2:])), 0, 1)


def _per_channel(weight: Any, x: Any) -> Any:
    return None if weight is None else widened(weight).reshape((-1, *[1] * (x.ndim - 2)))


def channel_norm(step: ProgramStep, x: Any, weight: Any = None, bias: Any = None) -> Any:
    """Normalized channels, or groups of a sample's channels; with means and inverse deviations."""
    rows = _to_rows(step.params, widened(x))
    mean = jnp.mean(rows, 1, keepdims=True)
    centred = rows - mean
    rstd = 1 / jnp.sqrt(jnp.mean(centred * centred, 1, keepdims=True) + step.params.x)
    y = _from_rows(step.params, centred * rstd, x.shape)
    return _scaled(y, _per_channel(weight, x), _per_channel(bias, x)), mean[:, 0], rstd[:, 0]


def channel_norm_backward(step: ProgramStep, g: Any, x: Any, mean: Any, rstd: Any, weight: Any = None) -> Any:
    """Gradients of input, weight and bias."""
    g, x = widened(g), widened(x)
    rstd = rstd[:, None]
    y = (_to_rows(step.params, x) - mean[:, None]) * rstd
    slopes = g if weight is None else g * _per_channel(weight, x)
    rows = _norm_backward(_to_rows(step.params, slopes), y, rstd, (1,), centred=True)
    gx = _from_rows(step.params, rows, x.shape)
    others = (0, *range(2, x.ndim))
    return gx, jnp.sum(g * _from_rows(step.params, y, x.shape), others), jnp.sum(g, others)


# --- softmax and losses, along the last axis


def softmax(_step: ProgramStep, x: Any) -> Any:
    """Shares of e^x."""
    return jax.nn.softmax(widened(x), axis=-1)


def log_softmax(_step: ProgramStep, x: Any) -> Any:
    """Logarithms of the shares of e^x."""
    return jax.nn.log_softmax(widened(x), axis=-1)


def softmax_backward(_step: ProgramStep, g: Any, y: Any) -> Any:
    """Gradient through softmax, from its result."""
    g, y = widened(g), widened(y)
    return y * (g - jnp.sum(g * y, -1, keepdims=True))


def log_softmax_backward(_step: ProgramStep, g: Any, y: Any) -> Any:
    """Gradient through log_softmax, from its result."""
    g, y = widened(g), widened(y)
    return g - jnp.exp(y) * jnp.sum(g, -1, keepdims=True)


def _losses(params: StepParams, x: Any, target: Any, weight: Any) -> tuple[Any, Any, Any]:
    """Loss, log-sum-exp and weight of each row; x: label smoothing, b: the target that is ignored."""
    classes = x.shape[-1]
    is_kept = target != params.b[0]
    safe = jnp.where(is_kept, target, 0)
    weights = jnp.ones((classes,), x.dtype) if weight is None else weight.astype(x.dtype)
    lse = jax.nn.logsumexp(x, axis=-1)
    logs = x - lse[:, None]
    own = -jnp.take_along_axis(logs, safe[:, None], 1)[:, 0] * weights[safe]
    spread = -jnp.sum(logs * weights, -1) / classes
    losses = (1 - params.x) * own + params.x * spread if params.x else own
    return jnp.where(is_kept, losses, 0), lse, jnp.where(is_kept, weights[safe], 0)


def cross_entropy(step: ProgramStep, x: Any, target: Any, weight: Any = None) -> Any:
    """Loss, log-sum-exp and weight of each row of logits."""
    return _losses(step.params, widened(x), target, weight)


def cross_entropy_backward(
    step: ProgramStep, g: Any, x: Any, target: Any, _lse: Any, weight: Any = None
) -> Any:
    """Gradient of the logits."""
    x = widened(x)
    pull = jax.vjp(lambda x: _losses(step.params, x, target, weight)[0], x)[1]
    return pull(g.astype(x.dtype))[0]


# --- attention: x: factor of the scores; flag: causal


def _attention(params: StepParams, query: Any, key: Any, value: Any, mask: Any) -> tuple[Any, Any]:
    group = query.shape[1] // key.shape[1]
    key, value = (jnp.repeat(each, group, axis=1) for each in (key, value))
    scores = jnp.einsum("bhqd,bhkd->bhqk", query, key, precision="highest") * params.x
    if mask is not None:
        scores = scores + widened(mask)
    if params.flag:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -math.inf)
    most = jax.lax.stop_gradient(jnp.max(scores, -1, keepdims=True))
    most = jnp.where(jnp.isneginf(most), 0, most)  # rows that see nothing give zeros
    weights = jnp.exp(scores - most)
    total = jnp.sum(weights, -1, keepdims=True)
    shares = weights / jnp.where(total == 0, 1, total)
    logs = (most + jnp.log(total))[..., 0]
    return jnp.einsum("bhqk,bhkd->bhqd", shares, value, precision="highest"), logs


def attention(step: ProgramStep, query: Any, key: Any, value: Any, mask: Any = None) -> Any:
    """Attention of queries (batch, heads, length, width); with the log-sum-exp of each query's scores."""
    return _attention(step.params, widened(query), widened(key), widened(value), mask)


def attention_backward(step: ProgramStep, query: Any, key: Any, value: Any, g: Any, *rest: Any) -> Any:
    """Gradients of query, key and value; `rest`: result, log-sum-exp of each query, and a mask if any."""
    mask = rest[2] if len(rest) > 2 else None
    given = [widened(each) for each in (query, key, value)]
    pull = jax.vjp(lambda q, k, v: _attention(step.params, q, k, v, mask)[0], *given)[1]
    return pull(widened(g))


NETWORKS: dict[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (
        matmul,
        linear,
        conv,
        conv_input,
        conv_weight,
        layer_norm,
        layer_norm_backward,
        channel_norm,
        channel_norm_backward,
        softmax,
        log_softmax,
        softmax_backward,
        log_softmax_backward,
        cross_entropy,
        cross_entropy_backward,
        attention,
        attention_backward,
    )
}
"""By name of the entry."""
