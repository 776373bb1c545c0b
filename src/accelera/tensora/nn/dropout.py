"""Dropout of elements and of channels."""

from __future__ import annotations

from accelera.errors import ArgumentError
from accelera.tensora import functional
from accelera.tensora.core import Tensor
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
            raise ArgumentError(f"[{type(self).__name__}] p={p}; give a probability")
        self.p = p
        self.inplace = inplace

    def forward(self, input: Tensor) -> Tensor:
        """Return the input with some elements dropped."""
        return functional.dropout(input, self.p, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


class Dropout1d(Dropout):
    """Channels of (N, C, L) or (C, L) set to zero with probability `p` while training."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the input with some channels set to zero, for each sample of the batch."""
        return functional.dropout1d(input, self.p, self.training)


class Dropout2d(Dropout):
    """Channels of (N, C, H, W) or (C, H, W) set to zero with probability `p` while training."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the input with some channels set to zero, for each sample of the batch."""
        return functional.dropout2d(input, self.p, self.training)


class Dropout3d(Dropout):
    """Channels of (N, C, D, H, W) or (C, D, H, W) set to zero with probability `p` while training."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the input with some channels set to zero, for each sample of the batch."""
        return functional.dropout3d(input, self.p, self.training)


class AlphaDropout(Dropout):
    """Dropout that keeps mean and variance of what `SELU` makes (G. Klambauer et al. 2017)."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the input with some elements at SELU's lower end, all scaled back."""
        return functional.alpha_dropout(input, self.p, self.training)


class FeatureAlphaDropout(Dropout):
    """`AlphaDropout` of whole channels."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the input with some channels at SELU's lower end, all scaled back."""
        return functional.feature_alpha_dropout(input, self.p, self.training)
