"""Dropout of elements and of channels."""

from __future__ import annotations

import math

from accelera.errors import ArgumentError, ShapeError
from accelera.tensora import dtypes, random
from accelera.tensora.core import Tensor, native


def _check(name: str, p: float) -> None:
    if not 0 <= p <= 1:
        raise ArgumentError(f"[{name}] p={p}; give a probability")


def dropout(input: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Elements set to zero with probability `p`, and the others divided by ``1 - p`` (N. Srivastava 2014).

    The numbers come from `accelera.tensora.random`'s default generator. Without `training` the input itself
    is returned.
    """
    _check("dropout", p)
    if not training or p == 0:
        return input
    if p == 1:
        return input * 0.0
    if str(input.device) == "cpu" and input.dtype in dtypes.KINDS["real floating"]:
        return random.default_generator.dropout(input, p)
    kept = random.default_generator.uniform(tuple(input.shape), dtypes.float32) >= p
    return input * (native.cast(kept, input.dtype) / (1 - p))


# --- channels ---------------------------------------------------------------------------------------------


def _channel_dropout(n: int, input: Tensor, p: float, training: bool) -> Tensor:
    name = f"dropout{n}d"
    _check(name, p)
    if input.ndim not in (n + 1, n + 2):
        raise ShapeError(f"[{name}] an input of {input.ndim} axes; give {n + 2}, or {n + 1} without a batch")
    if not training or p == 0:
        return input
    channels = tuple(input.shape)[: input.ndim - n]
    kept = dropout(native.full(channels, 1, input.dtype, input.device), p)
    return input * native.reshape(kept, (*channels, *(1,) * n))


def dropout1d(input: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Channels of (N, C, L) or (C, L) set to zero with probability `p`; see `dropout`."""
    return _channel_dropout(1, input, p, training)


def dropout2d(input: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Channels of (N, C, H, W) or (C, H, W) set to zero with probability `p`; see `dropout`."""
    return _channel_dropout(2, input, p, training)


def dropout3d(input: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Channels of (N, C, D, H, W) or (C, D, H, W) set to zero with probability `p`; see `dropout`."""
    return _channel_dropout(3, input, p, training)


# --- for SELU ---------------------------------------------------------------------------------------------


def _alpha_dropout(name: str, input: Tensor, shape: tuple[int, ...], p: float) -> Tensor:
    """The input with elements at SELU's lower end, by a mask of this shape, all scaled back."""
    _check(name, p)
    if p in (0, 1):
        return input if p == 0 else input * 0.0
    low = -1.7580993408473766
    scale = 1 / math.sqrt((low * low * p + 1) * (1 - p))
    drawn = random.default_generator.uniform(shape, dtypes.float32)
    kept = native.cast(drawn >= p, input.dtype)
    return (input * kept + (1 - kept) * low) * scale - scale * low * p


def alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False) -> Tensor:
    """Dropout that keeps mean and variance of what `selu` makes (G. Klambauer et al. 2017)."""
    return _alpha_dropout("alpha_dropout", input, tuple(input.shape), p if training else 0)


def feature_alpha_dropout(input: Tensor, p: float = 0.5, training: bool = False) -> Tensor:
    """`alpha_dropout` of whole channels of (N, C, ...)."""
    shape = (*tuple(input.shape)[:2], *(1,) * (input.ndim - 2))
    return _alpha_dropout("feature_alpha_dropout", input, shape, p if training else 0)
