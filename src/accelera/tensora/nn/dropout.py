"""Dropout of elements and of channels."""

from __future__ import annotations

import math
from typing import Any

from accelera.tensora import functional, random
from accelera.tensora.core import native
from accelera.tensora.nn.module import Module


class Dropout(Module):
    """Elements set to zero with probability `p` while training, others over ``1 - p`` (N. Srivastava 2014).

    Parameters
    ----------
    p
        Probability.
    inplace
        Taken for PyTorch's sake; the result is always a new tensor.

    Raises
    ------
    ValueError
        If `p` is no probability.

    """

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"{type(self).__name__}: p={p}; give a probability")
        self.p = p
        self.inplace = inplace

    def forward(self, input: Any) -> Any:
        """Return the input with some elements dropped."""
        return functional.dropout(input, self.p, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


class _ChannelDropout(Dropout):
    axes: int

    def forward(self, input: Any) -> Any:
        """Return the input with some channels set to zero, for each sample of the batch."""
        if input.ndim not in (self.axes + 1, self.axes + 2):
            raise ValueError(
                f"{type(self).__name__}: an input of {input.ndim} axes; "
                f"give {self.axes + 2}, or {self.axes + 1} without a batch"
            )
        if not self.training or self.p == 0:
            return input
        channels = tuple(input.shape)[: input.ndim - self.axes]
        ones = native.full(channels, 1, input.dtype, input.device)
        kept = functional.dropout(ones, self.p)
        return input * native.reshape(kept, (*channels, *(1,) * self.axes))


class Dropout1d(_ChannelDropout):
    """Channels of (N, C, L) or (C, L) set to zero with probability `p` while training."""

    axes = 1


class Dropout2d(_ChannelDropout):
    """Channels of (N, C, H, W) or (C, H, W) set to zero with probability `p` while training."""

    axes = 2


class Dropout3d(_ChannelDropout):
    """Channels of (N, C, D, H, W) or (C, D, H, W) set to zero with probability `p` while training."""

    axes = 3


class AlphaDropout(Dropout):
    """Dropout that keeps mean and variance of what `SELU` makes (G. Klambauer et al. 2017)."""

    def forward(self, input: Any) -> Any:
        """Return the input with some elements at SELU's lower end, all scaled back."""
        if not self.training or self.p == 0:
            return input
        if self.p == 1:
            return input * 0.0
        return alpha_dropped(input, tuple(input.shape), self.p)


class FeatureAlphaDropout(Dropout):
    """`AlphaDropout` of whole channels."""

    def forward(self, input: Any) -> Any:
        """Return the input with some channels at SELU's lower end, all scaled back."""
        if not self.training or self.p == 0:
            return input
        if self.p == 1:
            return input * 0.0
        return alpha_dropped(input, (*tuple(input.shape)[:2], *(1,) * (input.ndim - 2)), self.p)


def alpha_dropped(input: Any, shape: tuple[int, ...], p: float) -> Any:
    """Return the input with elements dropped to SELU's lower end, by a mask of this shape."""
    low = -1.7580993408473766
    scale = 1 / math.sqrt((low * low * p + 1) * (1 - p))
    drawn = random.default_generator.uniform(shape, "float32")
    kept = native.cast(drawn >= p, input.dtype)
    return (input * kept + (1 - kept) * low) * scale - scale * low * p
