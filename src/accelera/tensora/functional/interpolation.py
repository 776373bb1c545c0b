"""Images with other extents, their elements interpolated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from accelera.errors import ArgumentError, ShapeError
from accelera.tensora import dtypes
from accelera.tensora.amp import computes_in
from accelera.tensora.core import Tensor, native
from accelera.tensora.functional.convolution import Ints, each_extent
from accelera.tensora.functional.pooling import adaptive_avg_pool3d

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
) -> Tensor:
    """Images with other extents.

    Parameters
    ----------
    input
        Of shape ``(images, channels, *extents)``, with one to three extents.
    size
        Extents of the result: one number, or one for each.
    scale_factor
        Instead of `size`: factors of the extents; products are rounded down.
    mode
        "nearest", "nearest-exact" or "area" for any number of extents; "linear" for one, "bilinear" or
        "bicubic" for two, "trilinear" for three.
    align_corners
        Whether the centers of the outermost elements stay where they are, instead of the outermost edges.
        Only for the linear and cubic modes.
    recompute_scale_factor
        Whether places are found by the quotient of the extents instead of `scale_factor`.

    Raises
    ------
    ValueError
        If the mode does not fit the extents, or not exactly one of `size` and `scale_factor` is given.

    """
    n = input.ndim - 2
    if mode not in _MODES or n not in _MODES[mode]:
        raise ArgumentError(
            f"[interpolate] mode={mode!r} for shape {input.shape}; modes and numbers of extents are {_MODES}"
        )
    if align_corners is not None and mode in ("nearest", "nearest-exact", "area"):
        raise ArgumentError(f"[interpolate] align_corners={align_corners} means nothing for mode={mode!r}")
    outs, scales = _extents(input, n, size, scale_factor, bool(recompute_scale_factor))
    if mode == "area":
        return adaptive_avg_pool3d(input, outs) if n == 3 else native.adaptive_avg_pool(input, outs)
    return _resized(input, list(zip(outs, scales, strict=True)), mode, bool(align_corners))


@computes_in("float32")
def _resized(x: Tensor, extents: list[tuple[int, float | None]], mode: str, align: bool) -> Tensor:
    for axis, (out, scale) in enumerate(extents, 2):
        if mode.startswith("nearest"):
            x = _nearest(x, axis, out, scale, 0.5 if mode == "nearest-exact" else 0.0)
        else:
            x = _between(x, axis, out, scale, (mode == "bicubic", align))
    return x


def _extents(
    x: Tensor, n: int, size: Any, scale_factor: Any, recompute: bool
) -> tuple[tuple[int, ...], list[float | None]]:
    """Extents of the result, and the scale of each where it is not their quotient."""
    if (size is None) == (scale_factor is None):
        raise ArgumentError(f"[interpolate] size={size}, scale_factor={scale_factor}; give one of them")
    scales: list[float | None] = [None] * n
    if size is not None:
        outs = each_extent("interpolate", "size", size, n)
    else:
        factors = list(scale_factor) if isinstance(scale_factor, Sequence) else [scale_factor] * n
        if len(factors) != n:
            raise ArgumentError(f"[interpolate] scale_factor={scale_factor}; give one number, or {n}")
        outs = tuple(math.floor(extent * each) for extent, each in zip(x.shape[2:], factors, strict=True))
        scales = scales if recompute else [float(each) for each in factors]
    if min((*outs, *x.shape[2:])) < 1:
        raise ShapeError(f"[interpolate] extents {outs} from {tuple(x.shape[2:])}; all are at least 1")
    return outs, scales


def _nearest(x: Tensor, axis: int, out: int, scale: float | None, shift: float) -> Tensor:
    """The element that is nearest, by places that PyTorch rounds to float32."""
    extent = x.shape[axis]
    step = _single(1 / scale if scale else extent / out)
    centers = native.cast((_positions(out) + shift) * step, dtypes.float32)
    places = native.minimum(native.cast(native.floor(centers), dtypes.int64), extent - 1)
    return native.take(x, places, axis)


def _between(x: Tensor, axis: int, out: int, scale: float | None, kind: tuple[bool, bool]) -> Tensor:
    """Sums of neighbours with the weights of each."""
    cubic, align = kind
    extent = x.shape[axis]
    if align:
        step = (extent - 1) / (out - 1) if out > 1 else 0.0
        centers = _positions(out) * step
    else:
        step = 1 / scale if scale else extent / out
        centers = (_positions(out) + 0.5) * step - 0.5
    if not cubic:
        centers = native.maximum(centers, 0.0)
    below = native.floor(centers)
    rest = centers - below
    first = native.cast(below, dtypes.int64)
    result: Any = None
    for shift, weight in _cubic(rest) if cubic else [(0, 1 - rest), (1, rest)]:
        places = native.minimum(native.maximum(first + shift, 0), extent - 1)
        factors = native.reshape(native.cast(weight, x.dtype), (out, *(1,) * (x.ndim - axis - 1)))
        part = native.take(x, places, axis) * factors
        result = part if result is None else result + part
    return result


def _positions(count: int) -> Tensor:
    """Return 0 to count - 1 in float64.

    A tensor, as a list of a mistaken count would exhaust time and memory before anything is refused.
    """
    return native.cast(native.arange(count), dtypes.float64)


def _cubic(rest: Any) -> list[tuple[int, Any]]:
    """Neighbours and weights of R. Keys, "Cubic convolution interpolation" (1981), with a slope of -0.75."""
    a = -0.75

    def near(t: Any) -> Tensor:
        return ((a + 2) * t - (a + 3)) * t * t + 1

    def far(t: Any) -> Tensor:
        return ((a * t - 5 * a) * t + 8 * a) * t - 4 * a

    return [
        (-1, far(rest + 1)),
        (0, near(rest)),
        (1, near(1 - rest)),
        (2, far(2 - rest)),
    ]


def _single(x: float) -> float:
    """Return the number rounded to float32."""
    return float(native.asarray(x, native.dtype.float32).item())
