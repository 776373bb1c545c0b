"""Linear maps, distances, padding and rearrangement of pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accelera.errors import ArgumentError, ShapeError
from accelera.tensora import dtypes
from accelera.tensora.amp import computes_in
from accelera.tensora.core import Tensor, native
from accelera.tensora.linalg import vector_norm
from accelera.tensora.manipulation import broadcast_arrays


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``input @ weight.T + bias``.

    Parameters
    ----------
    input
        Of shape (..., in_features).
    weight
        Of shape (out_features, in_features).
    bias
        Of shape (out_features,).

    Raises
    ------
    ValueError
        If shapes do not fit.

    """
    return native.linear(input, weight, bias)


@computes_in("widest")
def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``sum of input1[i] * weight[k, i, j] * input2[j] + bias[k]``.

    Parameters
    ----------
    input1, input2
        Of shapes (..., in1_features) and (..., in2_features), with the same axes before.
    weight
        Of shape (out_features, in1_features, in2_features).
    bias
        Of shape (out_features,).

    """
    first, second = (native.reshape(x, (-1, x.shape[-1])) for x in (input1, input2))
    k, i, j = weight.shape
    half = native.linear(first, native.reshape(native.permute(weight, (0, 2, 1)), (k * j, i)), None)
    found = native.matmul(native.reshape(half, (-1, k, j)), native.reshape(second, (-1, j, 1)))
    found = native.reshape(found, (*input1.shape[:-1], k))
    return found if bias is None else found + bias


# --- distances --------------------------------------------------------------------------------------------


def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """Divided by the p-norm along an axis, or by `eps` where that is larger."""
    return input / native.maximum(vector_norm(input, axis=dim, keepdims=True, ord=p), eps)


@computes_in("float32")
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """Cosine of the angle between vectors along an axis; each length counts as at least `eps`."""
    vectors = broadcast_arrays(x1, x2)  # before the norms: the axis is one of the common shape
    first, second = (x / native.maximum(vector_norm(x, axis=dim, keepdims=True), eps) for x in vectors)
    return native.sum(first * second, dim, False)


@computes_in("float32")
def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """p-norm of ``x1 - x2 + eps`` along the last axis."""
    return vector_norm(x1 - x2 + eps, axis=-1, keepdims=keepdim, ord=p)


# --- padding and pixels -----------------------------------------------------------------------------------


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """Elements put before and behind the last axes; negative numbers take some away.

    Parameters
    ----------
    input
        Tensor.
    pad
        How many before and behind the last axis, then the one before it, and so on.
    mode
        ``"constant"``; ``"reflect"``, ``"replicate"`` or ``"circular"`` continue the input as it is
        mirrored without the border, by its border, or from its other end.
    value
        Of the new elements if constant; 0 by default.

    Raises
    ------
    ValueError
        If there are too many pairs, or the input is too short to be continued.

    """
    if len(pad) % 2 or len(pad) > 2 * input.ndim:
        raise ShapeError(
            f"[pad] {tuple(pad)} for a tensor with {input.ndim} axes; give a pair for each of the last"
        )
    if mode not in ("constant", "reflect", "replicate", "circular"):
        raise ArgumentError(f"[pad] mode={mode!r}; give 'constant', 'reflect', 'replicate' or 'circular'")
    if mode != "constant" and value is not None:
        raise ArgumentError(f"[pad] a value for mode {mode!r}, which takes none")
    for i in range(0, len(pad), 2):
        axis = input.ndim - 1 - i // 2
        before, behind = int(pad[i]), int(pad[i + 1])
        if before or behind:
            input = _padded(input, axis, before, behind, mode, 0 if value is None else value)
    return input


def _padded(x: Tensor, axis: int, before: int, behind: int, mode: str, value: float) -> Tensor:
    n = x.shape[axis]
    if n + before + behind < 0:
        raise ShapeError(f"[pad] {before} and {behind} for an extent of {n}, which would be negative")
    if mode != "constant":
        places = _padding_indices(n, before, behind, mode)
        return native.take(x, places, axis) if mode == "circular" else _take_padded(x, places, axis)
    keys = [slice(None)] * x.ndim
    keys[axis] = slice(max(-before, 0), n - max(-behind, 0))

    def filled(count: int) -> list[Any]:
        shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
        return [native.full(shape, value, x.dtype)] if count > 0 else []

    return native.concat([*filled(before), x[tuple(keys)], *filled(behind)], axis)


@computes_in("float32")
def _take_padded(x: Tensor, places: Tensor, axis: int) -> Tensor:
    return native.take(x, places, axis)


def _padding_indices(n: int, before: int, behind: int, mode: str) -> Tensor:
    """Return the index of the element at each position of a padded axis of extent n.

    Raises
    ------
    ValueError
        If the mode does not allow so much padding.

    """
    kept = range(n)[
        max(-before, 0) : n - max(-behind, 0)
    ]  # "circular" repeats only what negative padding keeps
    most = {"reflect": n - 1, "circular": len(kept), "replicate": max(before, behind) if n else -1}[mode]
    if max(before, behind) > most:
        raise ShapeError(f"[pad] {before} and {behind} for an extent of {n}; mode {mode!r} allows {most}")
    if mode == "circular":
        return native.asarray(
            [kept[i % len(kept)] for i in range(-max(before, 0), len(kept) + max(behind, 0))], dtypes.int64
        )
    if mode == "replicate":  # the only mode without a limit on the count
        positions = native.arange(before + n + behind) - before
        return native.minimum(native.maximum(positions, 0), n - 1)
    return native.asarray([n - 1 - abs(n - 1 - abs(i)) for i in range(-before, n + behind)], dtypes.int64)


def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """Channels as a finer grid: (..., C r², H, W) becomes (..., C, H r, W r) (W. Shi et al. 2016)."""
    *batch, channels, height, width = input.shape
    r = upscale_factor
    if r < 1 or channels % (r * r):
        raise ShapeError(
            f"[pixel_shuffle] {channels} channels for a factor of {r}; give a multiple of {r * r}"
        )
    n = len(batch)
    split = native.reshape(input, (*batch, channels // (r * r), r, r, height, width))
    order = (*range(n + 1), n + 3, n + 1, n + 4, n + 2)
    return native.reshape(native.permute(split, order), (*batch, channels // (r * r), height * r, width * r))


def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """The inverse of `pixel_shuffle`: (..., C, H r, W r) becomes (..., C r², H, W)."""
    *batch, channels, height, width = input.shape
    r = downscale_factor
    if r < 1 or height % r or width % r:
        raise ArgumentError(
            f"[pixel_unshuffle] {height} x {width} pixels for a factor of {r}; it must divide both"
        )
    n = len(batch)
    split = native.reshape(input, (*batch, channels, height // r, r, width // r, r))
    order = (*range(n + 1), n + 2, n + 4, n + 1, n + 3)
    return native.reshape(native.permute(split, order), (*batch, channels * r * r, height // r, width // r))
