"""Activations as modules."""

from __future__ import annotations

from typing import Any

from accelera.errors import ArgumentError, ShapeError
from accelera.tensora import creation, functional
from accelera.tensora.core import Tensor
from accelera.tensora.nn import init
from accelera.tensora.nn.module import Module
from accelera.tensora.nn.parameter import Parameter
from accelera.tensora.typing import Device, DTypeLike


class _Activation(Module):
    """Function with options, which are attributes of the same names."""

    function: Any
    options: tuple[str, ...] = ()

    def forward(self, input: Tensor) -> Tensor:
        """Return the function of the input."""
        return type(self).function(input, *(getattr(self, name) for name in self.options))

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)}" for name in self.options)


class _Plain(_Activation):
    """Function of each element without options."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace


class ReLU(_Plain):
    """``max(x, 0)``."""

    function = functional.relu


class ReLU6(_Plain):
    """``x`` limited to the range from 0 to 6."""

    function = functional.relu6


class Sigmoid(_Plain):
    """``1 / (1 + exp(-x))``."""

    function = functional.sigmoid


class Tanh(_Plain):
    """Hyperbolic tangent."""

    function = functional.tanh


class SiLU(_Plain):
    """``x * sigmoid(x)``, also known as swish."""

    function = functional.silu


class Mish(_Plain):
    """``x * tanh(softplus(x))`` (D. Misra 2019)."""

    function = functional.mish


class SELU(_Plain):
    """Scaled `ELU`, which keeps mean 0 and variance 1 (G. Klambauer et al. 2017)."""

    function = functional.selu


class Hardsigmoid(_Plain):
    """``x / 6 + 1/2`` limited to the range from 0 to 1."""

    function = functional.hardsigmoid


class Hardswish(_Plain):
    """``x * hardsigmoid(x)`` (A. Howard et al. 2019)."""

    function = functional.hardswish


class LogSigmoid(_Plain):
    """``log(sigmoid(x))``."""

    function = functional.logsigmoid


class Softsign(_Plain):
    """``x / (1 + |x|)``."""

    function = functional.softsign


class Tanhshrink(_Plain):
    """``x - tanh(x)``."""

    function = functional.tanhshrink


class GELU(_Activation):
    """``x * P(X <= x)`` for a standard normal X (D. Hendrycks and K. Gimpel 2016)."""

    function = functional.gelu
    options = ("approximate",)

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate


class ELU(_Activation):
    """``x`` where positive, otherwise ``alpha * (exp(x) - 1)`` (D. Clevert et al. 2015)."""

    function = functional.elu
    options = ("alpha",)

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.alpha, self.inplace = alpha, inplace


class CELU(_Activation):
    """``x`` where positive, otherwise ``alpha * (exp(x / alpha) - 1)`` (J. Barron 2017)."""

    function = functional.celu
    options = ("alpha",)

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.alpha, self.inplace = alpha, inplace


class LeakyReLU(_Activation):
    """``x`` where positive, otherwise ``negative_slope * x``."""

    function = functional.leaky_relu
    options = ("negative_slope",)

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__()
        self.negative_slope, self.inplace = negative_slope, inplace


class RReLU(_Activation):
    """`LeakyReLU` whose slopes are drawn from ``[lower, upper)`` while training; else their mean."""

    function = functional.rrelu
    options = ("lower", "upper", "training")

    def __init__(self, lower: float = 1 / 8, upper: float = 1 / 3, inplace: bool = False) -> None:
        super().__init__()
        self.lower, self.upper, self.inplace = lower, upper, inplace

    def extra_repr(self) -> str:
        return f"lower={self.lower}, upper={self.upper}"


class PReLU(Module):
    """`LeakyReLU` whose slope is trained (K. He et al. 2015).

    Parameters
    ----------
    num_parameters
        1, or as many as there are channels.
    init
        First slope.
    device, dtype
        Of the slopes.

    """

    def __init__(
        self,
        num_parameters: int = 1,
        init: float = 0.25,
        device: Device | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__()
        self.num_parameters = num_parameters
        self.init = init
        self.weight = Parameter(creation.empty((num_parameters,), dtype=dtype, device=device))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set all slopes to the first one."""
        init.constant_(self.weight, self.init)

    def forward(self, input: Tensor) -> Tensor:
        """Return the function of the input."""
        return functional.prelu(input, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"


class Hardtanh(_Activation):
    """``x`` limited to the range from `min_val` to `max_val`."""

    function = functional.hardtanh
    options = ("min_val", "max_val")

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        if min_val > max_val:
            raise ArgumentError(f"[Hardtanh] min_val={min_val} above max_val={max_val}")
        self.min_val, self.max_val, self.inplace = min_val, max_val, inplace


class Hardshrink(_Activation):
    """``x`` where its absolute value exceeds `lambd`, otherwise 0."""

    function = functional.hardshrink
    options = ("lambd",)

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd


class Softshrink(_Activation):
    """``x`` moved towards 0 by `lambd`."""

    function = functional.softshrink
    options = ("lambd",)

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd


class Softplus(_Activation):
    """``log(1 + exp(beta * x)) / beta``; x itself where ``beta * x > threshold``."""

    function = functional.softplus
    options = ("beta", "threshold")

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta, self.threshold = beta, threshold


class Threshold(_Activation):
    """``x`` where above `threshold`, otherwise `value`."""

    function = functional.threshold
    options = ("threshold", "value")

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        super().__init__()
        self.threshold, self.value, self.inplace = threshold, value, inplace


class GLU(_Activation):
    """First half along an axis times the sigmoid of the second (Y. Dauphin et al. 2016)."""

    function = functional.glu
    options = ("dim",)

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim


class _AlongAxis(_Activation):
    options = ("dim",)

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim


class Softmax(_AlongAxis):
    """``exp(x)`` over its sum along an axis, the last if none is given."""

    function = functional.softmax


class LogSoftmax(_AlongAxis):
    """Logarithm of `Softmax`."""

    function = functional.log_softmax


class Softmin(_AlongAxis):
    """`Softmax` of ``-x``."""

    function = functional.softmin


class Softmax2d(Module):
    """`Softmax` over the channels of (N, C, H, W) or (C, H, W)."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the function of the input.

        Raises
        ------
        ValueError
            If the input has neither three nor four axes.

        """
        if input.ndim not in (3, 4):
            raise ShapeError(f"[Softmax2d] an input of {input.ndim} axes; give three or four")
        return functional.softmax(input, -3)
