"""Activations, of each element but for those of softmax's kind."""

from __future__ import annotations

from typing import Any

from accelera.errors import ArgumentError, ShapeError
from accelera.tensora import dtypes, random
from accelera.tensora.amp import computes_in
from accelera.tensora.core import Tensor, native
from accelera.tensora.typing import DTypeLike

relu = native.relu
sigmoid = native.sigmoid
tanh = native.tanh


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """``x * P(X <= x)`` for a standard normal X (D. Hendrycks and K. Gimpel 2016).

    Parameters
    ----------
    input
        Tensor.
    approximate
        ``"none"``, or ``"tanh"`` for the paper's approximation.

    """
    if approximate not in ("none", "tanh"):
        raise ArgumentError(f"[gelu] approximate={approximate!r}; give 'none' or 'tanh'")
    return native.gelu_tanh(input) if approximate == "tanh" else native.gelu(input)


def silu(input: Tensor) -> Tensor:
    """``x * sigmoid(x)``, also known as swish."""
    if input.dtype in dtypes.KINDS["complex floating"]:
        return input * native.sigmoid(input)
    return native.silu(input)


def mish(input: Tensor) -> Tensor:
    """``x * tanh(softplus(x))`` (D. Misra 2019)."""
    return native.mish(input)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """``log(1 + exp(beta * x)) / beta``; x itself where ``beta * x > threshold``."""
    return native.softplus(input, beta, threshold)


def elu(input: Tensor, alpha: float = 1.0) -> Tensor:
    """``x`` where positive, otherwise ``alpha * (exp(x) - 1)`` (D. Clevert et al. 2015)."""
    return native.elu(input, alpha)


def celu(input: Tensor, alpha: float = 1.0) -> Tensor:
    """``x`` where positive, otherwise ``alpha * (exp(x / alpha) - 1)`` (J. Barron 2017)."""
    return native.elu(input / alpha, 1.0) * alpha


def selu(input: Tensor) -> Tensor:
    """`elu` scaled so that activations keep mean 0 and variance 1 (G. Klambauer et al. 2017)."""
    return native.elu(input, 1.6732632423543772) * 1.0507009873554805


def leaky_relu(input: Tensor, negative_slope: float = 0.01) -> Tensor:
    """``x`` where positive, otherwise ``negative_slope * x``."""
    return native.leaky_relu(input, negative_slope)


@computes_in("lower")
def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """`leaky_relu` whose slope is a tensor (K. He et al. 2015).

    Parameters
    ----------
    input
        Of shape (N, C, ...).
    weight
        Of shape (C,), or (1,) for all channels.

    Raises
    ------
    ValueError
        If the number of weights is another.

    """
    channels = input.shape[1] if input.ndim > 1 else 1
    if weight.size not in (1, channels):
        raise ShapeError(f"[prelu] {weight.size} weights for {channels} channels; give 1 or {channels}")
    shape = (1, -1, *[1] * (input.ndim - 2)) if input.ndim > 1 else (1,) * input.ndim
    return native.leaky_relu(input, native.reshape(weight, shape))


def rrelu(input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False) -> Tensor:
    """`leaky_relu` whose slopes are drawn from ``[lower, upper)``; their mean if not training."""
    if not training:
        return native.leaky_relu(input, (lower + upper) / 2)
    return native.leaky_relu(
        input, random.default_generator.uniform(tuple(input.shape), input.dtype, lower, upper)
    )


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """``x`` limited to the range from `min_val` to `max_val`."""
    if not min_val <= max_val:
        raise ArgumentError(f"[hardtanh] min_val={min_val} above max_val={max_val}")
    return native.hardtanh(input, min_val, max_val)


def relu6(input: Tensor) -> Tensor:
    """``x`` limited to the range from 0 to 6."""
    return native.hardtanh(input, 0, 6)


def hardsigmoid(input: Tensor) -> Tensor:
    """``x / 6 + 1/2`` limited to the range from 0 to 1."""
    return native.hardtanh(input + 3.0, 0.0, 6.0) / 6.0


def hardswish(input: Tensor) -> Tensor:
    """``x * hardsigmoid(x)`` (A. Howard et al. 2019)."""
    return input * hardsigmoid(input)


def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """``x`` where ``|x| > lambd``, otherwise 0."""
    return native.where(native.abs(input) <= lambd, 0, input)


def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """``x`` moved by `lambd` towards 0, and 0 where it would change its sign."""
    if lambd < 0:
        raise ArgumentError(f"[softshrink] lambd={lambd}; give 0 or more")
    return input - native.clip(input, -lambd, lambd)


def softsign(input: Tensor) -> Tensor:
    """``x / (1 + |x|)``."""
    return input / (native.abs(input) + 1)


def tanhshrink(input: Tensor) -> Tensor:
    """``x - tanh(x)``."""
    return input - native.tanh(input)


@computes_in("inputs")
def logsigmoid(input: Tensor) -> Tensor:
    """``log(sigmoid(x))``, without overflow."""
    return -native.softplus(-input, 1.0, 40.0)


def threshold(input: Tensor, threshold: float, value: float) -> Tensor:
    """``x`` where ``x > threshold``, otherwise `value`."""
    return native.where(input <= threshold, value, input)


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """First half along an axis times the sigmoid of the second (Y. Dauphin et al. 2016)."""
    extent = input.shape[dim]
    if extent % 2:
        raise ShapeError(f"[glu] an extent of {extent} along dim {dim}; give an even one")
    keys: list[Any] = [slice(None)] * input.ndim
    keys[dim] = slice(None, extent // 2)
    first = input[tuple(keys)]
    keys[dim] = slice(extent // 2, None)
    return first * native.sigmoid(input[tuple(keys)])


# --- softmax ----------------------------------------------------------------------------------------------


def _typed(input: Tensor, dtype: DTypeLike | None) -> Tensor:
    return input if dtype is None else native.cast(input, dtypes.as_dtype(dtype))


def softmax(input: Tensor, dim: int = -1, *, dtype: DTypeLike | None = None) -> Tensor:
    """Exponentials divided by their sum along an axis.

    Parameters
    ----------
    input
        Tensor of a real floating-point type.
    dim
        The axis.
    dtype
        Type that the input is converted to before.

    Raises
    ------
    TypeError
        If the input is of another type.

    """
    return native.softmax(_typed(input, dtype), dim)


def log_softmax(input: Tensor, dim: int = -1, *, dtype: DTypeLike | None = None) -> Tensor:
    """Logarithm of `softmax`, without overflow; the arguments are the same."""
    return native.log_softmax(_typed(input, dtype), dim)


def softmin(input: Tensor, dim: int = -1, *, dtype: DTypeLike | None = None) -> Tensor:
    """`softmax` of the negative input."""
    return native.softmax(-_typed(input, dtype), dim)


def gumbel_softmax(logits: Tensor, tau: float = 1.0, hard: bool = False, dim: int = -1) -> Tensor:
    """Sample of a categorical distribution that gradients pass through (E. Jang et al. 2016).

    Parameters
    ----------
    logits
        Unnormalized logarithms of the probabilities.
    tau
        Temperature: small ones give samples near to one-hot.
    hard
        Return one-hot samples, with the gradient of the soft ones.
    dim
        The axis of the classes.

    """
    uniform = random.default_generator.uniform(tuple(logits.shape), logits.dtype)
    tiny = dtypes.finfo(logits.dtype).smallest_normal
    noise = -native.log(-native.log(native.clip(uniform, tiny, 1 - dtypes.finfo(logits.dtype).eps)))
    soft = native.softmax((logits + noise) / tau, dim)
    if not hard:
        return soft
    axis = dim % logits.ndim
    best = native.argmax(soft.detach(), axis, True)
    places = native.reshape(native.arange(logits.shape[axis]), (-1, *[1] * (logits.ndim - 1 - axis)))
    sharp = native.cast(native.equal(best, places), logits.dtype)
    return sharp - soft.detach() + soft
