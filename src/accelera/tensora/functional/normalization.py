"""Normalization by the mean and variance of rows, groups or channels."""

from __future__ import annotations

import math
from typing import Any

from accelera.errors import ArgumentError, ShapeError
from accelera.tensora.amp import computes_in
from accelera.tensora.autograd import no_grad
from accelera.tensora.core import Tensor, native
from accelera.tensora.functional.layers import pad
from accelera.tensora.functional.pooling import avg_pool2d
from accelera.tensora.typing import Shape


def _shape(normalized_shape: Any) -> tuple[int, ...]:
    return (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)


def layer_norm(
    input: Tensor,
    normalized_shape: Shape,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Elements minus the mean of their row, divided by its standard deviation (J. Ba et al. 2016).

    Parameters
    ----------
    input
        Of shape (..., *normalized_shape).
    normalized_shape
        Extents of the last axes, which together are a row.
    weight, bias
        Of that shape; factor and summand of each column.
    eps
        Added to the variance.

    Raises
    ------
    ValueError
        If shapes do not fit.

    """
    return native.layer_norm(input, _shape(normalized_shape), weight, bias, eps, True)


def rms_norm(
    input: Tensor, normalized_shape: Shape, weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Elements divided by the root of the mean square of their row (B. Zhang and R. Sennrich 2019).

    The arguments are those of `layer_norm`; without `eps` it is the distance from 1 to the next number of
    the type, of float32 for half types.
    """
    if eps is None:
        eps = 2.0**-52 if input.dtype.name == "float64" else 2.0**-23
    return native.layer_norm(input, _shape(normalized_shape), weight, None, eps, False)


def _per_channel(vector: Tensor, ndim: int) -> Tensor:
    return native.reshape(vector, (1, -1, *[1] * (ndim - 2)))


def _scaled(normal: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    if weight is not None:
        normal = normal * _per_channel(weight, normal.ndim)
    return normal if bias is None else normal + _per_channel(bias, normal.ndim)


@computes_in("float32")
def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalization of groups of channels of each sample (Y. Wu and K. He 2018).

    Parameters
    ----------
    input
        Of shape (N, C, ...).
    num_groups
        Divides C.
    weight, bias
        Of shape (C,).
    eps
        Added to the variance.

    Raises
    ------
    ValueError
        If the groups do not divide the channels.

    """
    if input.ndim < 2 or num_groups < 1 or input.shape[1] % num_groups:
        raise ShapeError(
            f"[group_norm] {num_groups} groups for an input of shape {input.shape}; give (N, C, ...) and a "
            "divisor of C"
        )
    return _channel_norm(input, num_groups, weight, bias, eps)[0]


def _channel_norm(
    input: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Result, means and 1 / standard deviations; 0 groups: of channels over the batch."""
    if weight is None and bias is not None:
        weight = native.full(bias.shape, 1, bias.dtype)
    return native.channel_norm(input, groups, weight, bias, eps)


@computes_in("inputs")
def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalization of each channel over the batch (S. Ioffe and C. Szegedy 2015).

    Parameters
    ----------
    input
        Of shape (N, C, ...).
    running_mean, running_var
        Of shape (C,); None is allowed while training. They are written in place while training, and used
        instead of the batch's otherwise.
    weight, bias
        Of shape (C,).
    training
        Use the statistics of the batch.
    momentum
        Share of the batch's statistics in the running ones.
    eps
        Added to the variance.

    Raises
    ------
    ValueError
        If each channel has one element only while training, or the running statistics are missing otherwise.

    """
    if not input.size:
        return _scaled(input, weight, bias)
    if input.ndim < 2:
        raise ShapeError(f"[batch_norm] an input of shape {input.shape}; give (N, C, ...)")
    if not training:
        if running_mean is None or running_var is None:
            raise ArgumentError("[batch_norm] training=False needs running_mean and running_var")
        scale = native.rsqrt(running_var + eps)
        scale = scale if weight is None else scale * weight
        shift = -running_mean * scale if bias is None else bias - running_mean * scale
        return native.cast(_scaled(input, scale, shift), input.dtype)
    count = input.size // max(input.shape[1], 1)
    if count == 1:
        raise ShapeError(
            f"[batch_norm] an input of shape {input.shape} has one element of each channel; "
            "training needs more than one"
        )
    if input.ndim == 2:  # channels lie side by side: the loops want them one behind the other
        columns = native.reshape(native.permute(input, (1, 0)), (1, input.shape[1], -1))
        found, mean, rstd = _channel_norm(columns, 0, weight, bias, eps)
        found = native.permute(native.reshape(found, (input.shape[1], -1)), (1, 0))
    else:
        found, mean, rstd = _channel_norm(input, 0, weight, bias, eps)
    if running_mean is not None and running_var is not None:
        with no_grad():
            variance = (native.reciprocal(native.square(rstd)) - eps) * (count / (count - 1))
            _move(running_mean, mean, momentum)
            _move(running_var, variance, momentum)
    return native.cast(found, input.dtype)


def _move(running: Tensor, statistic: Tensor, momentum: Any) -> None:
    if isinstance(momentum, Tensor):
        momentum = native.cast(momentum, running.dtype)
    running[...] = native.lerp(running, native.cast(statistic, running.dtype), momentum)


@computes_in("inputs")
def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalization of each channel of each sample (D. Ulyanov et al. 2016).

    The arguments are those of `batch_norm`, with `use_input_stats` for `training`; the running statistics
    are moved towards the mean of those of the samples.
    """
    if (running_mean is None) != (running_var is None):
        raise ArgumentError("[instance_norm] one of running_mean and running_var; give both, or neither")
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    if math.prod(input.shape[2:]) <= 1:
        raise ShapeError(
            f"[instance_norm] an input of shape {input.shape}; more than one element per channel is needed"
        )
    if running_mean is not None and running_var is not None:
        with no_grad():
            flat = native.reshape(input.detach(), (*input.shape[:2], -1))
            count = float(flat.shape[2])
            mean = native.sum(flat, 2, True) / count
            variance = native.sum(native.square(flat - mean), 2, False) / (count - 1)
            samples = float(input.shape[0])
            mean = native.sum(native.reshape(mean, flat.shape[:2]), 0, False) / samples
            _move(running_mean, mean, momentum)
            _move(running_var, native.sum(variance, 0, False) / samples, momentum)
    return native.cast(_channel_norm(input, input.shape[1], weight, bias, eps)[0], input.dtype)


def local_response_norm(
    input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """Each element over a power of the squares of its neighbours in other channels (A. Krizhevsky 2012).

    Parameters
    ----------
    input
        Of shape (N, C, ...), with at least one axis behind the channels.
    size
        Channels whose squares are summed.
    alpha, beta, k
        The divisor is ``(k + alpha * mean) ** beta``.

    Raises
    ------
    ValueError
        If there are fewer axes.

    """
    if input.ndim < 3:
        raise ShapeError(f"[local_response_norm] an input of shape {input.shape}; give (N, C, ...)")
    if not input.size:
        return input
    batch, channels = input.shape[:2]
    squares = native.reshape(input * input, (batch, 1, channels, -1))
    padded = pad(squares, (0, 0, size // 2, (size - 1) // 2))
    means = avg_pool2d(padded, (size, 1), stride=1)
    return input / (native.reshape(means, tuple(input.shape)) * alpha + k) ** beta
