"""Products, convolutions, pools, norms, losses and attention of the op table in ONNX."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from accelera.tensora.lowering.onnx_graph import GraphValue, numpy_type
from accelera.tensora.lowering.onnx_operations import Lowering, widened
from accelera.tensora.lowering.pool_windows import AxisWindows, axis_windows
from accelera.tensora.lowering.program import ProgramStep

# --- products


def matmul(step: ProgramStep, a: GraphValue, b: GraphValue) -> GraphValue:
    """Product of matrices, in the type of the result."""
    a, b = (widened(each.to(step.outputs[0].dtype.name)) for each in (a, b))
    return a.graph.add("MatMul", [a, b], step.outputs[0].shape, a.dtype)


def linear(step: ProgramStep, x: GraphValue, weight: GraphValue, bias: Any = None) -> GraphValue:
    """Rows of x times the transposed weight, and a bias."""
    x, weight = (widened(each.to(step.outputs[0].dtype.name)) for each in (x, weight))
    shape = step.outputs[0].shape
    if bias is not None:
        bias = bias.to(x.dtype)
    if len(x.shape) == 2:
        inputs = [x, weight] if bias is None else [x, weight, bias]
        return x.graph.add("Gemm", inputs, shape, x.dtype, transB=1)
    y = x.graph.add("MatMul", [x, weight.transpose((1, 0))], shape, x.dtype)
    return y if bias is None else y + bias


# --- convolutions: a: strides, b: padding, c: dilations; mode: groups


def _windows(step: ProgramStep, weight: GraphValue) -> dict[str, Any]:
    params = step.params
    n = len(params.a)
    return {
        "kernel_shape": list(weight.shape[2:]),
        "strides": list(params.a),
        "pads": [*params.b, *params.b],
        "dilations": list(params.c[:n]),
        "group": params.mode,
    }


def conv(step: ProgramStep, x: GraphValue, weight: GraphValue, bias: Any = None) -> GraphValue:
    """Convolution of images (N, C, extents...)."""
    inputs = [widened(each) for each in (x, weight, bias) if each is not None]
    return x.graph.add("Conv", inputs, step.outputs[0].shape, inputs[0].dtype, **_windows(step, weight))


def conv_input(step: ProgramStep, y: GraphValue, weight: GraphValue) -> GraphValue:
    """Transposed convolution."""
    given = _windows(step, weight)
    out = step.outputs[0].shape
    params = step.params
    reached = [
        (n - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1
        for n, stride, padding, dilation, kernel in zip(
            y.shape[2:], params.a, params.b, given["dilations"], weight.shape[2:], strict=True
        )
    ]
    extra = [wanted - each for wanted, each in zip(out[2:], reached, strict=True)]
    return y.graph.add(
        "ConvTranspose", [widened(y), widened(weight)], out, widened(y).dtype, output_padding=extra, **given
    )


# --- pools: a: kernel, b: strides, c: padding, dilations, results and images; mode: shares of the image


def _taps(x: GraphValue, axes: list[AxisWindows], fill: float) -> Iterator[GraphValue]:
    """Yield, for each position k in a window, the k-th element of all windows of x (N, C, extents...)."""
    graph = x.graph
    padded = graph.pad(x, [0, 0, *(each.low for each in axes)], [0, 0, *(each.high for each in axes)], fill)
    for tap in itertools.product(*(range(len(each.places)) for each in axes)):
        part = padded
        for axis, (windows, k) in enumerate(zip(axes, tap, strict=True)):
            part = graph.gather(part, windows.places[k] + windows.low, axis + 2)
        yield part


def _pool_attributes(step: ProgramStep) -> dict[str, Any]:
    """Return the attributes of a pooling node, with padding behind that covers all windows."""
    params = step.params
    n = len(params.a)
    padding, dilations, outs, extents = (params.c[k * n : (k + 1) * n] for k in range(4))
    behind = [
        max(0, (out - 1) * stride + dilation * (kernel - 1) + 1 - extent - low)
        for out, stride, dilation, kernel, extent, low in zip(
            outs, params.b, dilations, params.a, extents, padding, strict=True
        )
    ]
    return {
        "kernel_shape": list(params.a),
        "strides": list(params.b),
        "pads": [*padding, *behind],
        "dilations": list(dilations),
    }


def _padding_fits_kernel(given: dict[str, Any]) -> bool:
    """Return whether all padding is smaller than the kernel, as ONNX runtimes require."""
    n = len(given["kernel_shape"])
    return all(p < given["kernel_shape"][i % n] for i, p in enumerate(given["pads"]))


def max_pool(step: ProgramStep, x: GraphValue) -> GraphValue:
    """Largest element of each window; their places, which gradients need, are not computed."""
    x = widened(x)
    given = _pool_attributes(step)
    if step.params.mode or not _padding_fits_kernel(given):
        return x.graph.elementwise("Max", *_taps(x, axis_windows(step.params), -math.inf))
    return x.graph.add("MaxPool", [x], step.outputs[0].shape, x.dtype, **given)


def avg_pool(step: ProgramStep, x: GraphValue) -> GraphValue:
    """Mean of each window; flag: count padding; x: divisor of the sums instead of the counts."""
    x = widened(x)
    if step.params.mode:
        return _shared_means(step, x)
    params, given = step.params, _pool_attributes(step)
    counts = np.ones(())
    for each in axis_windows(params):
        counts = counts[..., None] * (each.counted if params.flag else each.inside.sum(0))
    if params.x:
        counts = np.full_like(counts, params.x)
    if not _padding_fits_kernel(given):
        total = x.graph.elementwise("Sum", *_taps(x, axis_windows(params), 0))
        return total * x.graph.constant((1 / counts).astype(x.dtype))
    size = math.prod(params.a)
    y = x.graph.add("AveragePool", [x], step.outputs[0].shape, x.dtype, count_include_pad=1, **given)
    if (counts == size).all():
        return y
    return y * x.graph.constant((size / counts).astype(numpy_type(x.dtype)))


def _shared_means(step: ProgramStep, x: GraphValue) -> GraphValue:
    axes = axis_windows(step.params)
    if all(each.places.shape[1] == 1 for each in axes):
        return x.graph.add("GlobalAveragePool", [x], step.outputs[0].shape, x.dtype)
    for axis, each in enumerate(axes):
        shares = np.zeros((each.extent, each.places.shape[1]), x.dtype)
        for places, inside in zip(each.places, each.inside, strict=True):
            columns = np.arange(len(places))[inside]
            shares[places[inside], columns] = (1 / each.counted)[inside]
        last = len(x.shape) - 1
        order = [i for i in range(last + 1) if i != axis + 2] + [axis + 2]
        rows = x.transpose(order)
        shape = (*rows.shape[:-1], each.places.shape[1])
        rows = x.graph.add("MatMul", [rows, x.graph.constant(shares)], shape, x.dtype)
        x = rows.transpose([int(i) for i in np.argsort(order)])
    return x


def unfold(step: ProgramStep, x: GraphValue) -> GraphValue:
    """Windows of images as columns (N, C times elements of a window, windows)."""
    taps = [
        each.reshape((*each.shape[:2], 1, math.prod(each.shape[2:])))
        for each in _taps(x, axis_windows(step.params), 0)
    ]
    shape = (*taps[0].shape[:2], len(taps), taps[0].shape[3])
    columns = x.graph.add("Concat", taps, shape, x.dtype, axis=2)
    return columns.reshape(step.outputs[0].shape)


# --- norms: x: eps


def layer_norm(step: ProgramStep, x: GraphValue, weight: Any = None, bias: Any = None) -> Any:
    """Normalized last axes: LayerNormalization, or without centre by its root mean square."""
    x = widened(x)
    params, n = step.params, len(step.params.a)
    if weight is None:
        weight = x.graph.constant(np.ones(params.a, numpy_type(x.dtype)))
    weight = weight.to(x.dtype)
    rows = (*x.shape[:-n], *[1] * n)
    if params.flag:
        inputs = [x, weight] if bias is None else [x, weight, bias.to(x.dtype)]
        outputs = [(x.shape, x.dtype), (rows, x.dtype), (rows, x.dtype)]
        return x.graph.add_all("LayerNormalization", inputs, outputs, axis=-n, epsilon=params.x)
    mean_square = (x * x).reduce("ReduceMean", range(-n, 0))
    rstd = x.graph.elementwise("Reciprocal", x.graph.elementwise("Sqrt", mean_square + params.x))
    y = x * rstd * weight
    return (y if bias is None else y + bias.to(x.dtype)), x.graph.zeros(rows, x.dtype), rstd


def channel_norm(step: ProgramStep, x: GraphValue, weight: Any = None, bias: Any = None) -> Any:
    """Normalized channels, or groups of a sample's channels."""
    x = widened(x)
    groups = step.params.b[0]
    if groups:
        rows, axes = x.reshape((x.shape[0], groups, x.size // (x.shape[0] * groups))), [2]
    else:
        rows, axes = x, [0, *range(2, len(x.shape))]
    mean = rows.reduce("ReduceMean", axes)
    centred = rows - mean
    variance = (centred * centred).reduce("ReduceMean", axes)
    rstd = x.graph.elementwise("Reciprocal", x.graph.elementwise("Sqrt", variance + step.params.x))
    y = (centred * rstd).reshape(x.shape)
    per_channel = (-1, *[1] * (len(x.shape) - 2))
    if weight is not None:
        y = y * weight.to(x.dtype).reshape((weight.shape[0], *per_channel[1:]))
    if bias is not None:
        y = y + bias.to(x.dtype).reshape((bias.shape[0], *per_channel[1:]))
    return y, mean.reshape((mean.size,)), rstd.reshape((rstd.size,))


# --- softmax and losses, along the last axis


def softmax(_step: ProgramStep, x: GraphValue) -> GraphValue:
    """Shares of e^x."""
    x = widened(x)
    return x.graph.add("Softmax", [x], x.shape, x.dtype, axis=-1)


def log_softmax(_step: ProgramStep, x: GraphValue) -> GraphValue:
    """Logarithms of the shares of e^x."""
    x = widened(x)
    return x.graph.add("LogSoftmax", [x], x.shape, x.dtype, axis=-1)


def cross_entropy(step: ProgramStep, x: GraphValue, target: GraphValue, weight: Any = None) -> Any:
    """Loss, log-sum-exp and weight of each row; x: label smoothing, b: the target that is ignored."""
    x = widened(x)
    graph, smoothing, classes = x.graph, step.params.x, x.shape[1]
    is_ignored = target.equals(step.params.b[0])
    safe = graph.where(is_ignored, 0, target)
    rows = (x.shape[0],)
    lse = graph.add("ReduceLogSumExp", [x, graph.integers([1])], rows, x.dtype, keepdims=0)
    logs = log_softmax(step, x)
    weights = graph.constant(np.ones((classes,), x.dtype)) if weight is None else weight.to(x.dtype)
    row_weight = graph.add("Gather", [weights, safe], rows, x.dtype, axis=0)
    column = safe.reshape((*rows, 1))
    own = graph.add("GatherElements", [logs, column], (*rows, 1), x.dtype, axis=1).reshape(rows)
    loss = -(own * row_weight)
    if smoothing:
        spread = (logs * weights).reduce("ReduceSum", [1], keep=False) * (-smoothing / classes)
        loss = loss * (1 - smoothing) + spread
    return graph.where(is_ignored, 0.0, loss), lse, graph.where(is_ignored, 0.0, row_weight)


# --- attention: x: factor of the scores; flag: causal


def _for_each_query_head(x: GraphValue, group: int) -> GraphValue:
    if group == 1:
        return x
    b, heads, length, width = x.shape
    spread = x.reshape((b, heads, 1, length, width)).expand((b, heads, group, length, width))
    return spread.reshape((b, heads * group, length, width))


def attention(
    step: ProgramStep, query: GraphValue, key: GraphValue, value: GraphValue, mask: Any = None
) -> Any:
    """Attention of queries (batch, heads, length, width); with the log-sum-exp of each query's scores."""
    query, key, value = (widened(each) for each in (query, key, value))
    graph, dtype = query.graph, query.dtype
    group = query.shape[1] // key.shape[1]
    key, value = (_for_each_query_head(each, group) for each in (key, value))
    shape = (*query.shape[:3], key.shape[2])
    scores = graph.add("MatMul", [query, key.transpose((0, 1, 3, 2))], shape, dtype) * step.params.x
    if mask is not None:
        scores = scores + mask.to(dtype)
    if step.params.flag:
        hidden = np.where(np.tril(np.ones(shape[2:], bool)), 0, -math.inf).astype(dtype)
        scores = scores + graph.constant(hidden)
    shares = graph.add("Softmax", [scores], shape, dtype, axis=-1)
    if mask is not None:  # queries that see nothing give zeros
        most = scores.reduce("ReduceMax", [-1])
        shares = graph.where(most.equals(-math.inf), 0.0, shares)
    y = graph.add("MatMul", [shares, value], step.outputs[0].shape, dtype)
    logs = graph.add("ReduceLogSumExp", [scores, graph.integers([3])], query.shape[:3], dtype, keepdims=0)
    return y, logs


NETWORKS: dict[str, Lowering] = {
    each.__name__: each
    for each in (
        matmul,
        linear,
        conv,
        conv_input,
        max_pool,
        avg_pool,
        unfold,
        layer_norm,
        channel_norm,
        softmax,
        log_softmax,
        cross_entropy,
        attention,
    )
}
"""By name of the entry."""
