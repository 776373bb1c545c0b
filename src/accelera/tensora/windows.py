"""Windows over images and sequences: attention, folding, interpolation, and all of convolution and pooling.

Functions and arguments are named as in ``torch.nn.functional``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from accelera.tensora import convolution, pooling
from accelera.tensora.autograd import is_grad_enabled
from accelera.tensora.convolution import *  # noqa: F403
from accelera.tensora.convolution import Ints, batched, each_extent
from accelera.tensora.core import Tensor, native
from accelera.tensora.manipulation import broadcast_shapes
from accelera.tensora.pooling import *  # noqa: F403
from accelera.tensora.random import default_generator

__all__ = ["fold", "interpolate", "scaled_dot_product_attention", "unfold"]
__all__ += convolution.__all__
__all__ += pooling.__all__


# --- attention --------------------------------------------------------------------------------------------


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Attention ``softmax(query @ key.T * scale + attn_mask) @ value``, never with all weights in memory.

    It goes by blocks of queries and keys (T. Dao et al., "FlashAttention", 2022), in the backward pass too.
    With dropout, or where the mask needs a gradient, it is composed of operations and holds all weights.

    Parameters
    ----------
    query
        Of shape ``(..., heads, queries, width)``.
    key
        Of shape ``(..., heads, keys, width)`` and the same type.
    value
        Of shape ``(..., heads, keys, value_width)``. Leading axes are broadcast.
    attn_mask
        Broadcasts to ``(..., heads, queries, keys)``. True where a query sees a key, or numbers that are
        added.
    dropout_p
        Probability with which a weight becomes 0, and others larger for it.
    is_causal
        Whether query i sees only the keys 0 to i.
    scale
        ``1 / sqrt(width)`` if None.
    enable_gqa
        Whether `key` and `value` may have fewer heads, each for several neighbouring heads of queries.

    Returns
    -------
    Tensor
        Of shape ``(..., heads, queries, value_width)``; zeros for a query that sees nothing.

    Raises
    ------
    ValueError
        If shapes do not fit, both a mask and `is_causal` are given, or `dropout_p` is no probability.
    TypeError
        If the types differ, or are no real floating-point types.

    """
    name = "scaled_dot_product_attention"
    if attn_mask is not None and is_causal:
        raise ValueError(f"{name}: attn_mask and is_causal=True; give one of them")
    if not 0 <= dropout_p <= 1:
        raise ValueError(f"{name}: dropout_p={dropout_p}; give a number between 0 and 1")
    _check_attention(name, query, key, value)
    factor = 1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else float(scale)
    inputs, lead = _heads(name, (query, key, value), enable_gqa)
    mask = _mask(name, attn_mask, (*lead, query.shape[-2], key.shape[-2]), query.dtype)
    if dropout_p or (mask is not None and mask.requires_grad and is_grad_enabled()):
        result = _composed_attention(inputs, mask, factor, is_causal, dropout_p)
    else:
        result = native.attention(*inputs, mask, factor, is_causal)[0]
    return result if len(lead) == 2 else native.reshape(result, (*lead, *result.shape[-2:]))


def _check_attention(name: str, query: Any, key: Any, value: Any) -> None:
    fits = min(query.ndim, key.ndim, value.ndim) >= 2
    if not fits or query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise ValueError(
            f"{name}: query {query.shape}, key {key.shape} and value {value.shape} do not fit; "
            "give (..., queries, width), (..., keys, width) and (..., keys, value width)"
        )


def _heads(name: str, given: tuple[Any, ...], grouped: bool) -> tuple[list[Any], tuple[int, ...]]:
    """Tensors (batch, heads, length, width), and the leading axes of the result."""
    tail = -2
    if grouped and min(x.ndim for x in given) > 2:
        tail = -3
        heads = [x.shape[-3] for x in given]
        if heads[1] != heads[2] or heads[1] == 0 or heads[0] % heads[1]:
            raise ValueError(
                f"{name}: {heads[0]} heads of queries, {heads[1]} of keys and {heads[2]} of values; give "
                "as many of keys as of values, and a multiple of them of queries"
            )
    batch = broadcast_shapes(*[tuple(x.shape[:tail]) for x in given])
    if all(x.ndim == 4 and tuple(x.shape[:tail]) == batch for x in given):
        return list(given), (*batch, *given[0].shape[tail:-2])
    made = []
    for x in given:
        own = native.expand(x, (*batch, *x.shape[tail:]))
        heads_of = own.shape[-3] if own.ndim > 2 else 1
        outer = math.prod(own.shape[:-3])
        made.append(native.reshape(own, (outer, heads_of, *x.shape[-2:])))
    return made, (*batch, *given[0].shape[tail:-2])


def _mask(name: str, mask: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """What is added to scores, of a shape that broadcasts to (batch, heads, queries, keys)."""
    if mask is None:
        return None
    if broadcast_shapes(tuple(mask.shape), shape) != shape:
        raise ValueError(f"{name}: a mask of shape {mask.shape} does not broadcast to {shape}")
    if mask.dtype.name == "bool":
        mask = native.where(mask, native.asarray(0.0, dtype), native.asarray(-math.inf, dtype))
    mask = native.cast(mask, dtype)
    if len(shape) <= 4:
        return native.reshape(mask, (*(1,) * (4 - mask.ndim), *mask.shape))
    return native.reshape(native.expand(mask, shape), (-1, *shape[-3:]))


def _composed_attention(inputs: list[Any], mask: Any, scale: float, causal: bool, dropout: float) -> Any:
    query, key, value = inputs
    group = query.shape[1] // max(key.shape[1], 1)
    key, value = (_repeated(x, group) for x in (key, value))
    scores = native.matmul(query, native.permute(key, (0, 1, 3, 2))) * scale
    if causal:
        rows, columns = native.arange(scores.shape[2])[:, None], native.arange(scores.shape[3])
        scores = native.where(columns <= rows, scores, native.asarray(-math.inf, scores.dtype))
    if mask is not None:
        scores = scores + mask
    most = native.max(scores, 3, True).detach()
    weights = native.exp(scores - native.where(native.isinf(most), native.asarray(0.0, most.dtype), most))
    total = native.sum(weights, 3, True)
    weights = weights / native.where(total == 0, native.asarray(1.0, total.dtype), total)
    if dropout:
        kept = default_generator.bernoulli(1 - dropout, tuple(weights.shape))
        weights = weights * native.cast(kept, weights.dtype) * (1 / (1 - dropout) if dropout < 1 else 0.0)
    return native.matmul(weights, value)


def _repeated(x: Any, group: int) -> Any:
    """Each head `group` times."""
    batch, heads, length, width = x.shape
    wide = native.expand(x[:, :, None], (batch, heads, group, length, width))
    return native.reshape(wide, (batch, heads * group, length, width))


# --- windows as columns -----------------------------------------------------------------------------------


def unfold(input: Tensor, kernel_size: Ints, dilation: Ints = 1, padding: Ints = 0, stride: Ints = 1) -> Any:
    """Windows over images as columns.

    Parameters
    ----------
    input
        Of shape ``(images, channels, height, width)``, or without images.
    kernel_size, dilation, padding, stride
        As for `conv2d`.

    Returns
    -------
    Tensor
        Of shape ``(images, channels * kernel_height * kernel_width, windows)``.

    """
    x, single = batched("unfold", input, 2)
    kernel, steps, around, gaps = _windows("unfold", kernel_size, stride, padding, dilation)
    result = native.unfold(x, kernel, steps, around, gaps)
    return result[0] if single else result


def fold(
    input: Tensor,
    output_size: Ints,
    kernel_size: Ints,
    dilation: Ints = 1,
    padding: Ints = 0,
    stride: Ints = 1,
) -> Any:
    """Sum of columns where `unfold` took them from, in images of extents `output_size`.

    Parameters
    ----------
    input
        Of shape ``(images, channels * kernel_height * kernel_width, windows)``, or without images.
    output_size
        Height and width of the result.
    kernel_size, dilation, padding, stride
        As they were given to `unfold`.

    """
    if input.ndim not in (2, 3):
        raise ValueError(f"fold: shape {input.shape}; give (images, channels * window, windows)")
    outs = each_extent("fold", "output_size", output_size, 2)
    kernel, steps, around, gaps = _windows("fold", kernel_size, stride, padding, dilation)
    single = input.ndim == 2
    result = native.fold(input[None] if single else input, outs, kernel, steps, around, gaps)
    return result[0] if single else result


def _windows(name: str, kernel_size: Ints, stride: Ints, padding: Ints, dilation: Ints) -> Any:
    given = {"kernel_size": kernel_size, "stride": stride, "padding": padding, "dilation": dilation}
    return (each_extent(name, what, value, 2) for what, value in given.items())


# --- interpolation ----------------------------------------------------------------------------------------

_MODES = {
    "nearest": (1, 2, 3),
    "nearest-exact": (1, 2, 3),
    "linear": (1,),
    "bilinear": (2,),
    "trilinear": (3,),
    "bicubic": (2,),
    "area": (1, 2, 3),
}
"""For how many extents each mode is defined."""


def interpolate(
    input: Tensor,
    size: Ints | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Any:
    """Images with other extents.

    Parameters
    ----------
    input
        Of shape ``(images, channels, *extents)``, with one to three extents.
    size
        Extents of the result: one number, or one for each.
    scale_factor
        Instead of `size`: what extents are multiplied with, and rounded down.
    mode
        "nearest", "nearest-exact" or "area" for any number of extents; "linear" for one, "bilinear" or
        "bicubic" for two, "trilinear" for three.
    align_corners
        Whether the centres of the outermost elements stay where they are, instead of the outermost edges.
        Only for the linear and cubic modes.
    recompute_scale_factor
        Whether places are found by the quotient of the extents instead of `scale_factor`.
    antialias
        True is not there yet.

    Raises
    ------
    ValueError
        If the mode does not fit the extents, or not exactly one of `size` and `scale_factor` is given.
    NotImplementedError
        For ``antialias=True``.

    """
    n = input.ndim - 2
    if mode not in _MODES or n not in _MODES[mode]:
        raise ValueError(
            f"interpolate: mode={mode!r} for shape {input.shape}; modes and numbers of extents are {_MODES}"
        )
    if antialias:
        raise NotImplementedError("interpolate: antialias=True; only False is there yet")
    if align_corners is not None and mode in ("nearest", "nearest-exact", "area"):
        raise ValueError(f"interpolate: align_corners={align_corners} means nothing for mode={mode!r}")
    outs, scales = _extents(input, n, size, scale_factor, bool(recompute_scale_factor))
    if mode == "area":
        return native.adaptive_avg_pool(input, outs)
    result = input
    for i, (out, scale) in enumerate(zip(outs, scales, strict=True)):
        if mode.startswith("nearest"):
            result = _nearest(result, 2 + i, out, scale, 0.5 if mode == "nearest-exact" else 0.0)
        else:
            result = _between(result, 2 + i, out, scale, (mode == "bicubic", bool(align_corners)))
    return result


def _extents(
    x: Any, n: int, size: Any, scale_factor: Any, recompute: bool
) -> tuple[tuple[int, ...], list[float | None]]:
    """Extents of the result, and the scale of each where it is not their quotient."""
    if (size is None) == (scale_factor is None):
        raise ValueError(f"interpolate: size={size}, scale_factor={scale_factor}; give one of them")
    scales: list[float | None] = [None] * n
    if size is not None:
        outs = each_extent("interpolate", "size", size, n)
    else:
        factors = list(scale_factor) if isinstance(scale_factor, Sequence) else [scale_factor] * n
        if len(factors) != n:
            raise ValueError(f"interpolate: scale_factor={scale_factor}; give one number, or {n}")
        outs = tuple(math.floor(extent * each) for extent, each in zip(x.shape[2:], factors, strict=True))
        scales = scales if recompute else [float(each) for each in factors]
    if min((*outs, *x.shape[2:])) < 1:
        raise ValueError(f"interpolate: extents {outs} from {tuple(x.shape[2:])}; all are at least 1")
    return outs, scales


def _nearest(x: Any, axis: int, out: int, scale: float | None, shift: float) -> Any:
    """The element that is nearest, by places that PyTorch rounds to float32."""
    extent = x.shape[axis]
    step = _single(1 / scale if scale else extent / out)
    places = [min(math.floor(_single((i + shift) * step)), extent - 1) for i in range(out)]
    return native.take(x, native.asarray(places), axis)


def _between(x: Any, axis: int, out: int, scale: float | None, kind: tuple[bool, bool]) -> Any:
    """Sums of neighbours with the weights of each."""
    cubic, align = kind
    extent = x.shape[axis]
    if align:
        step = (extent - 1) / (out - 1) if out > 1 else 0.0
        centres = [i * step for i in range(out)]
    else:
        step = 1 / scale if scale else extent / out
        centres = [(i + 0.5) * step - 0.5 for i in range(out)]
    if not cubic:
        centres = [max(each, 0.0) for each in centres]
    first = [math.floor(each) for each in centres]
    rest = [each - place for each, place in zip(centres, first, strict=True)]
    result = None
    for shift, weight in _cubic(rest) if cubic else [(0, [1 - t for t in rest]), (1, rest)]:
        places = native.asarray([min(max(place + shift, 0), extent - 1) for place in first])
        factors = native.reshape(native.asarray(weight, x.dtype), (out, *(1,) * (x.ndim - axis - 1)))
        part = native.take(x, places, axis) * factors
        result = part if result is None else result + part
    return result


def _cubic(rest: list[float]) -> list[tuple[int, list[float]]]:
    """Neighbours and weights of R. Keys, "Cubic convolution interpolation" (1981), with a slope of -0.75."""
    a = -0.75

    def near(t: float) -> float:
        return ((a + 2) * t - (a + 3)) * t * t + 1

    def far(t: float) -> float:
        return ((a * t - 5 * a) * t + 8 * a) * t - 4 * a

    return [
        (-1, [far(t + 1) for t in rest]),
        (0, [near(t) for t in rest]),
        (1, [near(1 - t) for t in rest]),
        (2, [far(2 - t) for t in rest]),
    ]


def _single(x: float) -> float:
    """The number as float32 has it."""
    return float(native.asarray(x, native.dtype.float32).item())
