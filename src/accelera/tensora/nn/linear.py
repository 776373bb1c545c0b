"""Linear maps."""

from __future__ import annotations

import math
from typing import Any

from accelera.errors import ArgumentError
from accelera.tensora import creation, functional
from accelera.tensora.core import Tensor
from accelera.tensora.nn import init
from accelera.tensora.nn.module import Module
from accelera.tensora.nn.parameter import Parameter
from accelera.tensora.typing import Device, DTypeLike


def made(shape: tuple[int, ...], device: Device | None = None, dtype: DTypeLike | None = None) -> Parameter:
    """Return a parameter whose elements are anything."""
    return Parameter(creation.empty(shape, dtype=dtype, device=device))


class Identity(Module):
    """The input itself; arguments are ignored."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Tensor) -> Tensor:
        """Return the input."""
        return input


class Linear(Module):
    """``x @ weight.T + bias``.

    Parameters
    ----------
    in_features, out_features
        Length of the last axis of input and output.
    bias
        Whether there is one.
    device, dtype
        Of the parameters.

    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Device | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = made((out_features, in_features), device, dtype)
        self.bias: Any
        if bias:
            self.bias = made((out_features,), device, dtype)
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights and biases from uniform numbers within ``1 / sqrt(in_features)``."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_features) if self.in_features > 0 else 0
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        """Map (..., in_features) to (..., out_features)."""
        return functional.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        )


class Bilinear(Module):
    """``x1 @ weight @ x2 + bias`` for each output.

    Parameters
    ----------
    in1_features, in2_features, out_features
        Length of the last axis of both inputs and of the output.
    bias
        Whether there is one.
    device, dtype
        Of the parameters.

    """

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: Device | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__()
        if in1_features <= 0:
            raise ArgumentError(f"[Bilinear] in1_features={in1_features}; give at least 1")
        self.in1_features, self.in2_features = in1_features, in2_features
        self.out_features = out_features
        self.weight = made((out_features, in1_features, in2_features), device, dtype)
        self.bias: Any
        if bias:
            self.bias = made((out_features,), device, dtype)
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights and biases from uniform numbers within ``1 / sqrt(in1_features)``."""
        bound = 1 / math.sqrt(self.in1_features)
        for each in self.parameters():
            init.uniform_(each, -bound, bound)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        """Map (..., in1_features) and (..., in2_features) to (..., out_features)."""
        return functional.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in1_features={self.in1_features}, in2_features={self.in2_features}, "
            f"out_features={self.out_features}, bias={self.bias is not None}"
        )
