"""Convolution, pooling, attention and their kin beside PyTorch."""

from __future__ import annotations

import _thread
import math
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st

import accelera.tensora as ts
from accelera.tensora import functional, random
from accelera.tensora.core import native
from accelera.tensora.functional import interpolation

CONVS: Any = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {
    1: F.conv_transpose1d,
    2: F.conv_transpose2d,
    3: F.conv_transpose3d,
}


def ours(x: Any) -> Any:
    """The same numbers in a tensor of this library, which wants a gradient where the other one does."""
    tensor = native.from_dlpack(x.detach().contiguous(), True)
    tensor.requires_grad = x.requires_grad
    return tensor


def theirs(x: Any) -> Any:
    return torch.from_dlpack(x.detach())


def same(found: Any, expected: Any, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(theirs(found), expected.detach(), rtol=tolerance, atol=tolerance)


def compare(mine: Any, reference: Any, inputs: list[Any], *, second: bool = False) -> None:
    """Values, gradients and perhaps second gradients of both functions."""
    tensors = [ours(x) for x in inputs]
    a, b = mine(*tensors), reference(*inputs)
    same(a, b)
    if second:
        a, b = a * a, b * b
    g = torch.randn_like(b)
    wanted = [x for x in inputs if x.requires_grad]
    made = [x for x in tensors if x.requires_grad]
    first = torch.autograd.grad(b, wanted, g, create_graph=second)
    own = ts.grad(a, made, ours(g), create_graph=second)
    for x, y in zip(own, first, strict=True):
        same(x, y)
    if not second:
        return
    total: Any = sum((x * x).sum() for x in first)
    own_total: Any = sum(ts.sum(x * x) for x in own)
    for x, y in zip(ts.grad(own_total, made), torch.autograd.grad(total, wanted), strict=True):
        same(x, y, 1e-8)


def rand(*shape: int, dtype: Any = torch.float64) -> Any:
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


# --- convolution ------------------------------------------------------------------------------------------


@st.composite
def convolutions(draw: Any) -> Any:
    n = draw(st.integers(1, 3))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    channels = groups * draw(st.integers(1, 3)), groups * draw(st.integers(1, 7))

    def each(least: int, most: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(least, most)) for _ in range(n))

    kernel, stride, padding, dilation = each(1, 4), each(1, 4), each(0, 3), each(1, 3)
    least = [max(1, d * (k - 1) + 1 - 2 * p) for k, p, d in zip(kernel, padding, dilation, strict=True)]
    extents = tuple(draw(st.integers(m, m + (9 if n < 3 else 4))) for m in least)
    return n, groups, channels, kernel, (stride, padding, dilation), (draw(st.integers(1, 3)), *extents)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(convolutions())
def test_convolutions_are_those_of_torch(case: Any) -> None:
    n, groups, channels, kernel, places, (images, *extents) = case
    x = rand(images, channels[0], *extents)
    weight, bias = rand(channels[1], channels[0] // groups, *kernel), rand(channels[1])
    compare(
        lambda x, w, b: getattr(functional, f"conv{n}d")(x, w, b, *places, groups),
        lambda x, w, b: CONVS[n](x, w, b, *places, groups),
        [x, weight, bias],
        second=math.prod(extents) < 40,
    )


@settings(max_examples=40, deadline=None, derandomize=True)
@given(convolutions(), st.integers(0, 3))
def test_transposed_convolutions_are_those_of_torch(case: Any, more: int) -> None:
    n, groups, channels, kernel, (stride, padding, dilation), (images, *extents) = case
    more = min(more, *(max(s, d) - 1 for s, d in zip(stride, dilation, strict=True)))
    sizes = zip(extents, kernel, stride, padding, dilation, strict=True)
    if any((size - 1) * s - 2 * p + d * (k - 1) + 1 < 1 for size, k, s, p, d in sizes):
        return
    x, weight = rand(images, channels[0], *extents), rand(channels[0], channels[1] // groups, *kernel)
    places = (stride, padding, more, groups, dilation)
    compare(
        lambda x, w, b: getattr(functional, f"conv_transpose{n}d")(x, w, b, *places),
        lambda x, w, b: TRANSPOSED[n](x, w, b, *places),
        [x, weight, rand(channels[1])],
    )


@pytest.mark.parametrize(
    ("shape", "weight", "options"),
    [
        ((4, 64, 56, 56), (64, 64, 3, 3), {"padding": 1}),
        ((2, 64, 30, 31), (32, 64, 1, 1), {}),
        ((2, 24, 40, 40), (24, 1, 5, 5), {"padding": 2, "groups": 24}),
        ((1, 3, 224, 224), (16, 3, 7, 7), {"stride": 2, "padding": 3}),
        ((1, 700, 5, 6), (130, 700, 3, 3), {"padding": 1}),
        ((2, 8, 20000), (9, 8, 5), {}),
    ],
)
def test_large_convolutions_in_float32(shape: Any, weight: Any, options: Any) -> None:
    x, w = rand(*shape, dtype=torch.float32), rand(*weight, dtype=torch.float32)
    n = len(shape) - 2
    exact = [x.detach().double().requires_grad_(), w.detach().double().requires_grad_()]
    y = CONVS[n](*exact, **options)
    g = torch.randn_like(y).float()
    mine = [ours(x), ours(w)]
    out = getattr(functional, f"conv{n}d")(*mine, **options)
    pairs = [
        (out, y),
        *zip(ts.grad(out, mine, ours(g)), torch.autograd.grad(y, exact, g.double()), strict=True),
    ]
    for found, expected in pairs:
        error = (theirs(found).double() - expected).abs().max() / expected.abs().max()
        assert error < 2e-5


@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_named_padding_and_single_images() -> None:
    x, w = rand(2, 3, 7, 8), rand(4, 3, 3, 4)
    for padding in ("same", "valid"):
        compare(
            lambda x, w, p=padding: functional.conv2d(x, w, padding=p, dilation=(2, 1)),
            lambda x, w, p=padding: F.conv2d(x, w, padding=p, dilation=(2, 1)),
            [x, w],
        )
    same(functional.conv2d(ours(x)[0], ours(w)), F.conv2d(x[0], w))
    same(
        functional.conv_transpose1d(ours(x)[0, :, 0], ours(w)[:3, :, 0]),
        F.conv_transpose1d(x[0, :, 0], w[:3, :, 0]),
    )


def test_complex_convolutions() -> None:
    x, w = (torch.randn(*shape, dtype=torch.complex128) for shape in ((2, 3, 9), (4, 3, 3)))
    b = torch.randn(4, dtype=torch.complex128)
    same(functional.conv1d(ours(x), ours(w), ours(b), 2, 1), F.conv1d(x, w, b, 2, 1))
    t = w.transpose(0, 1)
    same(
        functional.conv_transpose1d(ours(x), ours(t), ours(b), 2, 1, 1),
        F.conv_transpose1d(x, t, b, 2, 1, 1),
    )


def test_half_convolutions() -> None:
    x, w = torch.randn(2, 8, 9, 9), torch.randn(8, 8, 3, 3)
    for dtype in (torch.float16, torch.bfloat16):
        a, b = x.to(dtype), w.to(dtype)
        found = theirs(functional.conv2d(ours(a), ours(b)))
        assert found.dtype == dtype
        torch.testing.assert_close(found.float(), F.conv2d(a.float(), b.float()), rtol=1e-2, atol=1e-2)


def test_no_images_and_no_channels() -> None:
    w = ts.ones((4, 3, 2, 2), dtype=ts.float32)
    assert functional.conv2d(ts.ones((0, 3, 5, 5)), w).shape == (0, 4, 4, 4)
    x = ts.ones((0, 3, 5, 5))
    x.requires_grad = w.requires_grad = True
    ts.sum(functional.conv2d(x, w)).backward()
    assert x.grad.shape == x.shape
    assert w.grad is not None
    assert ts.all(w.grad == 0)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x, w: functional.conv2d(x, w[:, :2]), ValueError, "3 input channels .* do not fit a weight"),
        (lambda x, w: functional.conv2d(x, w, groups=2), ValueError, "in 2 groups"),
        (lambda x, w: functional.conv2d(x, w, groups=0), ValueError, "0 groups; give at least 1"),
        (lambda x, w: functional.conv2d(x[:, :, :2], w), ValueError, "reaches over 3 elements, and 2"),
        (lambda x, w: functional.conv2d(x, w, stride=0), ValueError, "at least 1"),
        (lambda x, w: functional.conv2d(x, w, padding=-1), ValueError, "at least 0"),
        (lambda x, w: functional.conv2d(x, w, stride=(1, 2, 3)), ValueError, "an integer, or 2 of them"),
        (lambda x, w: functional.conv2d(x, w, padding="same", stride=2), ValueError, "'same'"),
        (lambda x, w: functional.conv2d(x, w, w), ValueError, "a bias of shape"),
        (lambda x, w: functional.conv3d(x[0, 0], w), ValueError, "an input of shape"),
        (lambda x, w: functional.conv1d(x[0], w), ValueError, "a weight of shape"),
        (lambda x, w: functional.conv2d(x.to(ts.float64), w), TypeError, "types float64 and float32"),
        (lambda x, w: functional.conv2d(x.to(ts.int32), w.to(ts.int32)), TypeError, "not defined for int32"),
        (lambda x, w: functional.conv_transpose2d(x, w), ValueError, "for 3 channels; give"),
        (lambda x, w: functional.conv_transpose2d(x, w[:3], output_padding=1), ValueError, "less than the"),
        (lambda x, w: functional.conv_transpose2d(x, w[:3], padding=9), ValueError, "less padding"),
        (lambda x, w: functional.max_pool2d(x, 2, padding=2), ValueError, "half of a window"),
        (lambda x, w: functional.max_pool2d(x, 9), ValueError, "do not fit into extents"),
        (lambda x, w: functional.avg_pool2d(x, 2, divisor_override=0), ValueError, "divisor_override=0"),
        (lambda x, w: functional.avg_pool2d(x.to(ts.int64), 2), TypeError, "not defined for int64"),
        (lambda x, w: functional.adaptive_avg_pool2d(x, 0), ValueError, "at least 1"),
        (lambda x, w: functional.fold(x[0], 5, 2), ValueError, "a multiple of 4"),
        (lambda x, w: functional.interpolate(x, 3, mode="linear"), ValueError, "mode='linear'"),
        (lambda x, w: functional.interpolate(x), ValueError, "give one of them"),
    ],
)
def test_what_does_not_fit_is_said(call: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        call(ts.ones((2, 3, 5, 5)), ts.ones((4, 3, 3, 3)))


def test_the_same_bits_for_every_number_of_threads() -> None:
    source = np.random.default_rng(0)

    def tensor(*shape: int) -> Any:
        x = ts.asarray(source.standard_normal(shape).astype(np.float32))
        x.requires_grad = True
        return x

    x, w, q, k = tensor(5, 20, 17, 19), tensor(70, 20, 3, 3), tensor(1, 2, 150, 40), tensor(1, 1, 150, 40)

    def results() -> list[Any]:
        y = functional.conv2d(x, w, stride=(1, 2), padding=1)
        z = functional.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True)
        return [y, z, *ts.grad(ts.sum(y * y) + ts.sum(z * z), [x, w, q, k])]

    threads = ts.get_num_threads()
    try:
        ts.set_num_threads(1)
        one = results()
        ts.set_num_threads(2)
        two = results()
    finally:
        ts.set_num_threads(threads)
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(np.asarray(a.detach()), np.asarray(b.detach()))


# --- pooling and columns ----------------------------------------------------------------------------------


@st.composite
def pools(draw: Any) -> Any:
    n = draw(st.integers(1, 3))
    kernel = tuple(draw(st.integers(1, 4)) for _ in range(n))
    stride = tuple(draw(st.integers(1, 3)) for _ in range(n))
    padding = tuple(draw(st.integers(0, k // 2)) for k in kernel)
    dilation = tuple(draw(st.integers(1, 2)) for _ in range(n))
    extents = tuple(draw(st.integers(d * (k - 1) + 1, 9)) for k, d in zip(kernel, dilation, strict=True))
    return n, kernel, stride, padding, dilation, draw(st.booleans()), extents


@settings(max_examples=60, deadline=None, derandomize=True)
@given(pools(), st.booleans(), st.sampled_from([None, 3]))
def test_pools_are_those_of_torch(case: Any, count: bool, divisor: int | None) -> None:
    n, kernel, stride, padding, dilation, ceil, extents = case
    x = rand(2, 3, *extents)
    reference, mine = getattr(F, f"max_pool{n}d"), getattr(functional, f"max_pool{n}d")
    given_ = (kernel, stride, padding, dilation, ceil)
    compare(lambda x: mine(x, *given_), lambda x: reference(x, *given_), [x])
    expected = reference(x, *given_, True)[1]
    assert torch.equal(theirs(mine(ours(x), *given_, True)[1]), expected)
    means = (kernel, stride, padding, ceil, count, *((divisor,) if n > 1 else ()))
    reference, mine = getattr(F, f"avg_pool{n}d"), getattr(functional, f"avg_pool{n}d")
    compare(lambda x: mine(x, *means), lambda x: reference(x, *means), [x], second=True)
    if n == 2:
        places = (kernel, dilation, padding, stride)
        compare(lambda x: functional.unfold(x, *places), lambda x: F.unfold(x, *places), [x])
        y = F.unfold(x, *places).detach().requires_grad_()
        compare(
            lambda y: functional.fold(y, extents, *places),
            lambda y: F.fold(y, extents, *places),
            [y],
        )


@pytest.mark.parametrize("n", [1, 2, 3])
def test_other_pools(n: int) -> None:
    index = (slice(None), slice(None), *(slice(None),) * n, *(0,) * (3 - n))
    x = rand(2, 3, 7, 9, 5)[index].detach()
    x = x.clone().requires_grad_()
    outs = (3, None, 8)[:n]
    for name in (f"adaptive_avg_pool{n}d", f"adaptive_max_pool{n}d"):
        wished = outs[0] if n == 1 else outs
        compare(
            lambda x, f=name, o=outs: getattr(functional, f)(x, o),
            lambda x, f=name, o=wished: getattr(F, f)(x, o),
            [x],
        )
    positive = x.detach().abs().add(0.1).requires_grad_()
    name = f"lp_pool{n}d"
    compare(
        lambda x: getattr(functional, name)(x, 3, 2),
        lambda x: getattr(F, name)(x, 3, 2),
        [positive],
        second=True,
    )
    values, places = getattr(F, f"max_pool{n}d")(x, 2, return_indices=True)
    name = f"max_unpool{n}d"
    compare(
        lambda v: getattr(functional, name)(v, ours(places), 2, output_size=x.shape),
        lambda v: getattr(F, name)(v, places, 2, output_size=x.shape),
        [values.detach().requires_grad_()],
    )


def test_the_largest_of_nan() -> None:
    x = ts.asarray([[[1.0, math.nan, 2.0, -math.inf, -math.inf, -math.inf]]])
    values, places = functional.max_pool1d(x, 2, return_indices=True)
    assert math.isnan(values[0, 0, 0].item())
    assert values[0, 0, 1:].tolist() == [2.0, -math.inf]
    assert places.tolist() == [[[1, 2, 4]]]


@pytest.mark.parametrize("align", [None, False, True])
@pytest.mark.parametrize(
    ("mode", "n"), [(mode, n) for mode, some in interpolation._MODES.items() for n in some], ids=str
)
def test_interpolation_is_that_of_torch(mode: str, n: int, align: bool | None) -> None:
    if align is not None and mode in ("nearest", "nearest-exact", "area"):
        return
    x = rand(2, 2, *(6, 9, 5)[:n])
    choices: list[Any] = [
        {"size": (7, 4, 11)[:n]},
        {"scale_factor": 1.7},
        {"scale_factor": 0.6, "recompute_scale_factor": True},
    ]
    for choice in choices:
        options = {"mode": mode, "align_corners": align, **choice}
        compare(
            lambda x, o=options: functional.interpolate(x, **o),
            lambda x, o=options: F.interpolate(x, **o),
            [x],
            second=True,
        )


# --- attention --------------------------------------------------------------------------------------------


@st.composite
def attentions(draw: Any) -> Any:
    heads, group = draw(st.integers(1, 2)), draw(st.sampled_from([1, 1, 3]))
    lengths = [draw(st.sampled_from([1, 2, 15, 16, 33, 64, 65, 130, 520])) for _ in range(2)]
    widths = [draw(st.sampled_from([1, 3, 8, 16, 33])) for _ in range(2)]
    return (
        draw(st.integers(1, 2)),
        heads,
        group,
        lengths,
        widths,
        draw(st.sampled_from(["", "causal", "bool", "float"])),
    )


@settings(max_examples=60, deadline=None, derandomize=True)
@given(attentions())
def test_attention_is_that_of_torch(case: Any) -> None:
    batch, heads, group, (queries, keys), (width, value_width), kind = case
    q, k = rand(batch, heads * group, queries, width), rand(batch, heads, keys, width)
    v = rand(batch, heads, keys, value_width)
    mask = None
    if kind == "bool":
        mask = torch.rand(batch, 1, queries, keys) > 0.4
        mask[..., 0] = True
    if kind == "float":
        mask = torch.randn(heads * group, 1, keys, dtype=torch.float64)
        mask[..., 1:][mask[..., 1:] < -1] = -math.inf
    options = {"is_causal": kind == "causal", "enable_gqa": group > 1}
    own_mask = None if mask is None else ours(mask)
    compare(
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, own_mask, **options),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, mask, **options),
        [q, k, v],
    )


@pytest.mark.parametrize("kind", ["", "causal", "mask"])
def test_second_gradients_of_attention(kind: str) -> None:
    q, k, v = rand(1, 4, 5, 3), rand(1, 2, 6, 3), rand(1, 2, 6, 4)
    mask = torch.randn(5, 6, dtype=torch.float64) if kind == "mask" else None
    own_mask = None if mask is None else ours(mask)

    def composed(q: Any, k: Any, v: Any) -> Any:
        k, v = (x.repeat_interleave(2, 1) for x in (k, v))
        scores = q @ k.mT / math.sqrt(3)
        if mask is not None:
            scores = scores + mask
        if kind == "causal":
            scores = scores.masked_fill(~torch.ones(5, 6, dtype=torch.bool).tril(), -math.inf)
        return scores.softmax(-1) @ v

    def mine(q: Any, k: Any, v: Any) -> Any:
        causal = kind == "causal"
        return functional.scaled_dot_product_attention(q, k, v, own_mask, is_causal=causal, enable_gqa=True)

    compare(mine, composed, [q, k, v], second=True)


def test_queries_that_see_nothing_get_zeros_and_no_gradients() -> None:
    q, k, v = (rand(1, 1, 3, 4) for _ in range(3))
    mask = torch.tensor([[True, False, True], [False, False, False], [True, True, True]])
    compare(
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, ours(mask)),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, mask),
        [q, k, v],
    )
    out = functional.scaled_dot_product_attention(ours(q), ours(k), ours(v), ours(mask))
    assert ts.all(out[0, 0, 1] == 0)


def test_a_mask_with_a_gradient_and_leading_axes() -> None:
    q, k, v = rand(2, 3, 2, 4, 5), rand(3, 2, 6, 5), rand(2, 1, 2, 6, 5)
    compare(
        functional.scaled_dot_product_attention,
        F.scaled_dot_product_attention,
        [q, k, v, rand(4, 6)],
    )
    compare(
        functional.scaled_dot_product_attention,
        F.scaled_dot_product_attention,
        [rand(4, 5) for _ in "qkv"],
    )


def test_attention_of_views_and_halves() -> None:
    x = torch.randn(2, 40, 3, 32)
    turned = x.transpose(1, 2)
    own = ts.permute_dims(ours(x), (0, 2, 1, 3))
    expected = F.scaled_dot_product_attention(turned, turned, turned)
    same(functional.scaled_dot_product_attention(own, own, own), expected, 1e-5)
    half = own.to(ts.bfloat16)
    found = functional.scaled_dot_product_attention(half, half, half)
    assert found.dtype is ts.bfloat16
    same(found.to(ts.float32), expected, 3e-2)


def test_dropout_keeps_the_mean() -> None:
    random.manual_seed(0)
    q, k = (torch.randn(1, 1, 200, 8, dtype=torch.float64) for _ in range(2))
    v = torch.ones(1, 1, 200, 4, dtype=torch.float64)
    out = functional.scaled_dot_product_attention(ours(q), ours(k), ours(v), dropout_p=0.3)
    assert 0.9 < ts.mean(out).item() < 1.1
    assert ts.all(functional.scaled_dot_product_attention(ours(q), ours(k), ours(v), dropout_p=1.0) == 0)


@pytest.mark.parametrize(
    ("shapes", "options", "words"),
    [
        (((2, 3, 4), (2, 3, 5), (2, 3, 4)), {}, "do not fit"),
        (((2, 3, 4), (2, 3, 4), (2, 4, 4)), {}, "do not fit"),
        (((4,), (3, 4), (3, 4)), {}, "do not fit"),
        (((2, 3, 4), (3, 3, 4), (3, 3, 4)), {}, "do not fit at axis"),
        (((1, 3, 2, 4), (1, 2, 2, 4), (1, 2, 2, 4)), {"enable_gqa": True}, "3 heads of queries, 2 of keys"),
        (((2, 3, 4),) * 3, {"dropout_p": 1.5}, "between 0 and 1"),
        (((2, 3, 4),) * 3, {"attn_mask": (3, 4)}, "do not fit at axis|does not broadcast"),
        (((2, 3, 4),) * 3, {"attn_mask": (3, 3), "is_causal": True}, "give one of them"),
    ],
)
def test_attention_that_does_not_fit(shapes: Any, options: Any, words: str) -> None:
    mask = ts.ones(options["attn_mask"]) if "attn_mask" in options else None
    with pytest.raises(ValueError, match=words):
        query, key, value = (ts.ones(shape) for shape in shapes)
        functional.scaled_dot_product_attention(query, key, value, **{**options, "attn_mask": mask})


def test_attention_of_integers_is_refused() -> None:
    x = ts.ones((2, 3, 4), dtype=ts.int64)
    with pytest.raises(TypeError, match="not defined for int64"):
        functional.scaled_dot_product_attention(x, x, x)


def test_attention_holds_far_less_than_all_weights() -> None:
    n = 4096
    q, k, v = (ts.asarray(np.random.default_rng(i).random((1, 1, n, 16), np.float32)) for i in range(3))
    for x in (q, k, v):
        x.requires_grad = True
    native.reset_peak()
    before = ts.memory_stats().live_bytes
    ts.sum(functional.scaled_dot_product_attention(q, k, v)).backward()
    assert ts.memory_stats().peak_bytes - before < n * n * 4 / 8


@pytest.mark.parametrize("backward", [False, True])
def test_long_attention_hears_an_interrupt(backward: bool) -> None:
    x = ts.ones((1, 2, 8192, 64))
    x.requires_grad = backward

    def work() -> None:
        while True:
            out = functional.scaled_dot_product_attention(x, x, x)
            if backward:
                out.backward(x.detach())

    functional.scaled_dot_product_attention(x, x, x)
    told: list[float] = []

    def interrupt() -> None:
        told.append(time.monotonic())
        _thread.interrupt_main()

    timer = threading.Timer(0.3, interrupt)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        work()
    assert time.monotonic() - told[0] < 1.5  # 0.2 s on an idle machine
    timer.join()
