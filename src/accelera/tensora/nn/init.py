"""Initial values of parameters, written in place, with the names and distributions of `torch.nn.init`."""

from __future__ import annotations

import math
from typing import Any

from accelera.errors import ArgumentError, ShapeError
from accelera.tensora import linalg, random
from accelera.tensora.core import Tensor, native

_LINEAR = {
    "linear",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "sigmoid",
}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Return the factor by which a nonlinearity's inputs should deviate more than its outputs.

    Raises
    ------
    ValueError
        If the nonlinearity is not known.

    """
    if nonlinearity in _LINEAR:
        return 1.0
    if nonlinearity == "tanh":
        return 5.0 / 3
    if nonlinearity == "relu":
        return math.sqrt(2.0)
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else float(param)
        return math.sqrt(2.0 / (1 + slope**2))
    if nonlinearity == "selu":
        return 0.75
    raise ArgumentError(
        f"[calculate_gain] nonlinearity={nonlinearity!r}; give one of relu, leaky_relu, tanh, selu, linear"
    )


def _write(tensor: Tensor, value: Any) -> Tensor:
    tensor.detach()[...] = native.cast(value, tensor.dtype) if isinstance(value, Tensor) else value
    return tensor


def _source(generator: Any) -> random.Generator:
    return random.default_generator if generator is None else generator


def uniform_(
    tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: random.Generator | None = None
) -> Tensor:
    """Fill with numbers evenly distributed in ``[a, b)``."""
    return _write(tensor, _source(generator).uniform(tuple(tensor.shape), tensor.dtype, a, b))


def normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: random.Generator | None = None
) -> Tensor:
    """Fill with normal numbers."""
    return _write(tensor, _source(generator).normal(tuple(tensor.shape), tensor.dtype, mean, std))


def trunc_normal_(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: random.Generator | None = None,
) -> Tensor:
    """Fill with normal numbers that lie in ``[a, b]``, by the inverse of their distribution."""

    def below(x: float) -> float:
        return (1.0 + math.erf((x - mean) / (std * math.sqrt(2.0)))) / 2.0

    low, high = 2 * below(a) - 1, 2 * below(b) - 1
    drawn = _source(generator).uniform(tuple(tensor.shape), "float64", low, high)
    values = native.erfinv(drawn) * (std * math.sqrt(2.0)) + mean
    return _write(tensor, native.clip(values, a, b))


def constant_(tensor: Tensor, val: float) -> Tensor:
    """Fill with one number."""
    return _write(tensor, val)


def ones_(tensor: Tensor) -> Tensor:
    """Fill with ones."""
    return _write(tensor, 1)


def zeros_(tensor: Tensor) -> Tensor:
    """Fill with zeros."""
    return _write(tensor, 0)


def eye_(tensor: Tensor) -> Tensor:
    """Make a matrix the identity, as far as it goes.

    Raises
    ------
    ValueError
        If the tensor has not two axes.

    """
    if tensor.ndim != 2:
        raise ShapeError(f"[eye_] a tensor of shape {tuple(tensor.shape)}; give a matrix")
    zeros_(tensor)
    for i in range(min(tensor.shape)):
        tensor.detach()[i, i] = 1
    return tensor


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Make weights of a convolution pass each channel on.

    Raises
    ------
    ValueError
        If the tensor has not three to five axes, or the groups do not divide the channels.

    """
    if tensor.ndim not in (3, 4, 5):
        raise ShapeError(f"[dirac_] a tensor of {tensor.ndim} axes; give three, four or five")
    out = tensor.shape[0]
    if out % groups:
        raise ShapeError(f"[dirac_] {out} channels in {groups} groups; give a divisor")
    zeros_(tensor)
    each = out // groups
    centre = tuple(extent // 2 for extent in tensor.shape[2:])
    for g in range(groups):
        for i in range(min(each, tensor.shape[1])):
            place = (g * each + i, i, *centre)
            tensor.detach()[place] = 1
    return tensor


def fans(tensor: Tensor) -> tuple[int, int]:
    """Return how many inputs and outputs each number of a weight has to do with.

    Raises
    ------
    ValueError
        If the tensor has fewer than two axes.

    """
    if tensor.ndim < 2:
        raise ShapeError(f"[init] a tensor of shape {tuple(tensor.shape)} has no fans; give two axes or more")
    field = math.prod(tensor.shape[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: random.Generator | None = None) -> Tensor:
    """Fill with uniform numbers of variance ``2 gain² / (inputs + outputs)`` (X. Glorot 2010)."""
    bound = gain * math.sqrt(6.0 / sum(fans(tensor)))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: random.Generator | None = None) -> Tensor:
    """Fill with normal numbers of variance ``2 gain² / (inputs + outputs)`` (X. Glorot 2010)."""
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(fans(tensor))), generator)


def _deviation(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ArgumentError(f"[kaiming] mode={mode!r}; give 'fan_in' or 'fan_out'")
    fan = fans(tensor)[mode == "fan_out"]
    return calculate_gain(nonlinearity, a) / math.sqrt(fan)


def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: random.Generator | None = None,
) -> Tensor:
    """Fill with uniform numbers whose variance a rectifier keeps (K. He et al. 2015)."""
    if 0 in tensor.shape:
        return tensor
    bound = math.sqrt(3.0) * _deviation(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: random.Generator | None = None,
) -> Tensor:
    """Fill with normal numbers whose variance a rectifier keeps (K. He et al. 2015)."""
    if 0 in tensor.shape:
        return tensor
    return normal_(tensor, 0.0, _deviation(tensor, a, mode, nonlinearity), generator)


def orthogonal_(tensor: Tensor, gain: float = 1, generator: random.Generator | None = None) -> Tensor:
    """Make rows or columns of a matrix orthogonal (A. Saxe et al. 2013); later axes count as columns.

    Raises
    ------
    ValueError
        If the tensor has fewer than two axes.

    """
    fans(tensor)
    rows, columns = tensor.shape[0], math.prod(tensor.shape[1:])
    drawn = _source(generator).normal((max(rows, columns), min(rows, columns)), "float64")
    q, r = linalg.qr(drawn)
    q = q * native.sign(linalg.diagonal(r))
    q = q.T if rows < columns else q
    return _write(tensor, native.reshape(q, tuple(tensor.shape)) * gain)


def sparse_(
    tensor: Tensor, sparsity: float, std: float = 0.01, generator: random.Generator | None = None
) -> Tensor:
    """Fill with normal numbers, and set a share of each column to zero (J. Martens 2010).

    Raises
    ------
    ValueError
        If the tensor has not two axes.

    """
    if tensor.ndim != 2:
        raise ShapeError(f"[sparse_] a tensor of shape {tuple(tensor.shape)}; give a matrix")
    normal_(tensor, 0.0, std, generator)
    rows, columns = tensor.shape
    for column in range(columns):
        order = _source(generator).permutation(rows).tolist()
        for row in order[: math.ceil(sparsity * rows)]:
            tensor.detach()[row, column] = 0
    return tensor
