"""Samples of the entries that go by windows: convolution, pooling, columns and attention."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from accelera.tensora import autograd
from accelera.tensora.core import native
from tests.tensora.op_samples import Sample

Windows = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
REAL: dict[str, Any] = {"integers": False}
PLAIN = ((1, 1), (0, 0), (1, 1))
WIDE = ((2, 1), (1, 2), (1, 2))
LINE = ((2,), (1,), (1,))
CUBE = ((1, 2, 1), (1, 0, 1), (1, 1, 2))


# --- convolution in NumPy, one tap after another ----------------------------------------------------------


def taps(kernel: Any, extents: Any, windows: Windows) -> Any:
    """For each tap of a kernel, the part of the padded input that the outputs read through it."""
    stride, _, dilation = windows
    for tap in itertools.product(*map(range, kernel)):
        steps = zip(tap, dilation, stride, extents, strict=True)
        yield tap, (..., *(slice(t * d, t * d + s * (n - 1) + 1, s) for t, d, s, n in steps))


def padded(x: Any, windows: Windows) -> Any:
    return np.pad(x, [(0, 0), (0, 0), *((p, p) for p in windows[1])])


def outputs(extents: Any, kernel: Any, windows: Windows) -> tuple[int, ...]:
    steps = zip(extents, kernel, *windows, strict=True)
    return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in steps)


def conv(x: Any, weight: Any, bias: Any, windows: Windows, groups: int) -> Any:
    extents = outputs(x.shape[2:], weight.shape[2:], windows)
    out = np.zeros((x.shape[0], weight.shape[0], *extents), np.result_type(x, weight))
    parts, kernels = out.shape[1] // groups, weight.shape[1]
    wide = padded(x, windows)
    for g in range(groups):
        own, read = out[:, g * parts : (g + 1) * parts], wide[:, g * kernels : (g + 1) * kernels]
        for tap, where in taps(weight.shape[2:], extents, windows):
            index = (slice(g * parts, (g + 1) * parts), slice(None), *tap)
            factor = weight[index]
            own += np.einsum("oc,nc...->no...", factor, read[where])
    return out if bias is None else out + bias.reshape(-1, *(1,) * (x.ndim - 2))


def conv_input(y: Any, weight: Any, windows: Windows, groups: int, extents: Any) -> Any:
    kernels, parts = weight.shape[1], y.shape[1] // groups
    wide = padded(np.zeros((y.shape[0], kernels * groups, *extents), np.result_type(y, weight)), windows)
    for g in range(groups):
        own, read = wide[:, g * kernels : (g + 1) * kernels], y[:, g * parts : (g + 1) * parts]
        for tap, where in taps(weight.shape[2:], y.shape[2:], windows):
            index = (slice(g * parts, (g + 1) * parts), slice(None), *tap)
            factor = weight[index]
            own[where] += np.einsum("oc,no...->nc...", factor, read)
    inner = (..., *(slice(p, p + n) for p, n in zip(windows[1], extents, strict=True)))
    return wide[inner]


def conv_weight(x: Any, y: Any, windows: Windows, groups: int, kernel: Any) -> Any:
    kernels, parts = x.shape[1] // groups, y.shape[1] // groups
    out = np.zeros((y.shape[1], kernels, *kernel), np.result_type(x, y))
    wide = padded(x, windows)
    for g in range(groups):
        for tap, where in taps(kernel, y.shape[2:], windows):
            read = wide[:, g * kernels : (g + 1) * kernels][where].reshape(len(x), kernels, -1)
            grads = y[:, g * parts : (g + 1) * parts].reshape(len(y), parts, -1)
            factor = np.einsum("nop,ncp->oc", grads, read)
            index = (slice(g * parts, (g + 1) * parts), slice(None), *tap)
            out[index] = factor
    return out


def _conv(shapes: Any, windows: Windows, groups: int = 1) -> Sample:
    def call(x: Any, weight: Any, bias: Any = None) -> Any:
        return native.conv(x, weight, bias, *windows, groups)

    return Sample(call, lambda x, w, b=None: conv(x, w, b, windows, groups), shapes, **REAL)


def _conv_input(shapes: Any, windows: Windows, groups: int, extents: Any) -> Sample:
    return Sample(
        lambda y, w: native.conv_input(y, w, *windows, groups, extents),
        lambda y, w: conv_input(y, w, windows, groups, extents),
        shapes,
        **REAL,
    )


def _conv_weight(shapes: Any, windows: Windows, groups: int, kernel: Any) -> Sample:
    return Sample(
        lambda x, y: native.conv_weight(x, y, *windows, groups, kernel),
        lambda x, y: conv_weight(x, y, windows, groups, kernel),
        shapes,
        **REAL,
    )


# --- pooling in NumPy, one window after another -----------------------------------------------------------


def pooled(x: Any, kernel: Any, windows: Windows, function: Callable[[Any], Any]) -> Any:
    """`function` of each window, which padding is no part of."""
    stride, padding, dilation = windows
    extents = outputs(x.shape[2:], kernel, windows)
    out = np.zeros((*x.shape[:2], *extents), x.dtype)
    for place in itertools.product(*map(range, extents)):
        part = x
        for axis, (o, s, p, d, k) in enumerate(zip(place, stride, padding, dilation, kernel, strict=True), 2):
            read = [i for i in range(o * s - p, o * s - p + d * k, d) if 0 <= i < x.shape[axis]]
            part = np.take(part, read, axis)
        index = (..., *place)
        out[index] = function(part.reshape(*x.shape[:2], -1))
    return out


def spread_means(y: Any, windows: Windows, kernel: Any, extents: Any) -> Any:
    """The gradient of means with counted padding: each output in equal shares."""
    weight = np.full((y.shape[1], 1, *kernel), 1 / np.prod(kernel))
    return conv_input(y, weight, windows, y.shape[1], extents)


def _largest(x: Any) -> Any:
    return x.max(-1)


def columns(x: Any, kernel: Any, windows: Windows) -> Any:
    extents = outputs(x.shape[2:], kernel, windows)
    read = [padded(x, windows)[where] for _, where in taps(kernel, extents, windows)]
    return np.stack(read, 2).reshape(x.shape[0], -1, int(np.prod(extents)))


def _folded(y: Any) -> Any:
    weight = np.eye(4).reshape(4, 1, 2, 2)
    y = y.reshape(2, 3, 4, 12).reshape(6, 4, 3, 4)
    return conv_input(y, weight, PLAIN, 1, (4, 5)).reshape(2, 3, 4, 5)


def _average(x: Any) -> Any:
    return native.avg_pool(x, (2, 3), (2, 2), (1, 1), False, True, 0)


def _average_back(y: Any) -> Any:
    """The entry is no function of Python: it is what the gradient of a mean is made of."""
    x = native.full((2, 2, 5, 6), 0, y.dtype)
    x.requires_grad = True
    (made,) = autograd.grad(_average(x), x, y, create_graph=True)
    return made


# --- attention in NumPy -----------------------------------------------------------------------------------


def weights(q: Any, k: Any, causal: bool, mask: Any) -> Any:
    scores = 0.5 * q @ k.swapaxes(-1, -2) + (0 if mask is None else mask)
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def attention(q: Any, k: Any, v: Any, causal: bool, mask: Any = None) -> Any:
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
    return weights(q, k, causal, mask) @ v


def attention_gradients(q: Any, k: Any, v: Any, g: Any, causal: bool) -> Any:
    groups = q.shape[1] // k.shape[1]
    wide_k, wide_v = (np.repeat(x, groups, 1) for x in (k, v))
    p = weights(q, wide_k, causal, None)
    d = g @ wide_v.swapaxes(-1, -2)
    s = 0.5 * p * (d - (p * d).sum(-1, keepdims=True))

    def gathered(x: Any) -> Any:
        return x.reshape(x.shape[0], k.shape[1], groups, *x.shape[2:]).sum(2)

    return s @ wide_k, gathered(s.swapaxes(-1, -2) @ q), gathered(p.swapaxes(-1, -2) @ g)


def _attention(shapes: Any, causal: bool) -> Sample:
    def call(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        return native.attention(q, k, v, mask, 0.5, causal)[0]

    return Sample(call, lambda q, k, v, m=None: attention(q, k, v, causal, m), shapes, **REAL)


def _attention_backward(shapes: Any, causal: bool, result: int) -> Sample:
    def call(q: Any, k: Any, v: Any, g: Any) -> Any:
        made = native.attention(q.detach(), k.detach(), v.detach(), None, 0.5, causal)
        return native.attention_backward([q, k, v, g, *made], None, 0.5, causal)[result]

    return Sample(call, lambda q, k, v, g: attention_gradients(q, k, v, g, causal)[result], shapes, **REAL)


HEADS = ((1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 3))
SHARED = ((1, 4, 4, 2), (1, 2, 3, 2), (1, 2, 3, 2))

WINDOW_SAMPLES: dict[str, list[Sample]] = {
    "conv": [
        _conv(((2, 2, 4, 5), (3, 2, 2, 3)), PLAIN),
        _conv(((1, 4, 5, 4), (2, 2, 3, 2), (2,)), WIDE, groups=2),
        _conv(((2, 2, 6), (2, 2, 3)), LINE),
        _conv(((1, 1, 3, 4, 4), (2, 1, 2, 2, 2)), CUBE),
    ],
    "conv_input": [
        _conv_input(((2, 3, 3, 3), (3, 2, 2, 3)), PLAIN, 1, (4, 5)),
        _conv_input(((1, 2, 3, 6), (2, 2, 3, 2)), WIDE, 2, (5, 4)),
        _conv_input(((1, 2, 3), (2, 2, 3)), LINE, 1, (6,)),
    ],
    "conv_weight": [
        _conv_weight(((2, 2, 4, 5), (2, 3, 3, 3)), PLAIN, 1, (2, 3)),
        _conv_weight(((1, 4, 5, 4), (1, 2, 3, 6)), WIDE, 2, (3, 2)),
    ],
    "max_pool": [
        Sample(
            lambda x: native.max_pool(x, (2, 3), (2, 1), (1, 1), (1, 2), False)[0],
            lambda x: pooled(x, (2, 3), ((2, 1), (1, 1), (1, 2)), _largest),
            ((2, 2, 4, 6),),
            apart=0.01,
            integers=False,
        )
    ],
    "avg_pool": [
        Sample(
            lambda x: native.avg_pool(x, (2, 3), (2, 2), (1, 1), False, False, 0),
            lambda x: pooled(x, (2, 3), ((2, 2), (1, 1), (1, 1)), lambda part: part.mean(-1)),
            ((2, 2, 4, 5),),
            **REAL,
        ),
        Sample(
            lambda x: native.adaptive_avg_pool(x, (2,)),
            lambda x: np.stack([x[..., :3].mean(-1), x[..., 2:].mean(-1)], -1),
            ((2, 2, 5),),
            **REAL,
        ),
    ],
    "avg_pool_back": [
        Sample(
            _average_back,
            lambda y: spread_means(y, ((2, 2), (1, 1), (1, 1)), (2, 3), (5, 6)),
            ((2, 2, 3, 3),),
            **REAL,
        )
    ],
    "unfold": [
        Sample(
            lambda x: native.unfold(x, (2, 3), *WIDE),
            lambda x: columns(x, (2, 3), WIDE),
            ((2, 2, 4, 4),),
            **REAL,
        )
    ],
    "fold": [Sample(lambda y: native.fold(y, (4, 5), (2, 2), *PLAIN), _folded, ((2, 12, 12),), **REAL)],
    "attention": [
        _attention(HEADS, False),
        _attention(SHARED, True),
        _attention((*HEADS, (2, 3, 1)), False),
    ],
    "attention_backward": [
        *(_attention_backward((*HEADS, (1, 2, 3, 3)), False, i) for i in range(3)),
        *(_attention_backward((*SHARED, (1, 4, 4, 2)), True, i) for i in range(3)),
    ],
}
