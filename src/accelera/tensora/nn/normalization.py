"""Normalizations with trained scales and shifts."""

from __future__ import annotations

from typing import Any

from accelera.errors import ShapeError
from accelera.tensora import creation, dtypes, functional
from accelera.tensora.core import Tensor, native
from accelera.tensora.nn.linear import made
from accelera.tensora.nn.module import Module
from accelera.tensora.typing import Device, DTypeLike


def _ones_and_zeros(module: Module) -> None:
    for name, value in module.named_parameters(recurse=False):
        value.detach()[...] = 0 if name == "bias" else 1


class _Normalization(Module):
    def _add(
        self, name: str, shape: tuple[int, ...] | None, device: Device | None, dtype: DTypeLike | None
    ) -> None:
        self.register_parameter(name, None if shape is None else made(shape, device, dtype))

    def reset_parameters(self) -> None:
        """Set scales to one and shifts to zero."""
        _ones_and_zeros(self)


def _axes(normalized_shape: int | Any) -> tuple[int, ...]:
    return (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)


class LayerNorm(_Normalization):
    """Mean 0 and variance 1 over the last axes (J. Ba et al. 2016).

    Parameters
    ----------
    normalized_shape
        Extents of these axes.
    eps
        Added to the variance.
    elementwise_affine, bias
        Whether there are trained scales, and with them shifts.
    device, dtype
        Of the parameters.

    """

    weight: Any
    bias: Any

    def __init__(
        self,
        normalized_shape: Any,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Device | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = _axes(normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        self._add("weight", self.normalized_shape if elementwise_affine else None, device, dtype)
        self._add("bias", self.normalized_shape if elementwise_affine and bias else None, device, dtype)
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        """Normalize the input."""
        return functional.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class RMSNorm(_Normalization):
    """Mean square 1 over the last axes (B. Zhang and R. Sennrich 2019).

    Parameters
    ----------
    normalized_shape
        Extents of these axes.
    eps
        Added to the mean square; the type's resolution if None.
    elementwise_affine
        Whether there are trained scales.
    device, dtype
        Of the parameters.

    """

    weight: Any

    def __init__(
        self,
        normalized_shape: Any,
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Device | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__()
        self.normalized_shape = _axes(normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        self._add("weight", self.normalized_shape if elementwise_affine else None, device, dtype)
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        """Normalize the input."""
        return functional.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class GroupNorm(_Normalization):
    """Mean 0 and variance 1 over groups of channels (Y. Wu and K. He 2018).

    Parameters
    ----------
    num_groups, num_channels
        The first divides the second.
    eps
        Added to the variance.
    affine, bias
        Whether there are trained scales, and with them shifts.
    device, dtype
        Of the parameters.

    Raises
    ------
    ValueError
        If the groups do not divide the channels.

    """

    weight: Any
    bias: Any

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Device | None = None,
        dtype: DTypeLike | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if num_channels % num_groups:
            raise ShapeError(f"[GroupNorm] {num_channels} channels in {num_groups} groups; give a divisor")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        self._add("weight", (num_channels,) if affine else None, device, dtype)
        self._add("bias", (num_channels,) if affine and bias else None, device, dtype)
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        """Normalize (N, C, ...)."""
        return functional.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"


class _RunningNorm(_Normalization):
    """Statistics of a batch while training, and running ones."""

    weight: Any
    bias: Any
    running_mean: Any
    running_var: Any
    num_batches_tracked: Any
    axes: tuple[int, ...]

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Device | None = None,
        dtype: DTypeLike | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        shape = (num_features,)
        self._add("weight", shape if affine else None, device, dtype)
        self._add("bias", shape if affine and bias else None, device, dtype)
        tracked = track_running_stats
        self.register_buffer(
            "running_mean", creation.zeros(shape, dtype=dtype, device=device) if tracked else None
        )
        self.register_buffer(
            "running_var", creation.ones(shape, dtype=dtype, device=device) if tracked else None
        )
        self.register_buffer(
            "num_batches_tracked", creation.zeros((), dtype=dtypes.int64, device=device) if tracked else None
        )
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Set the running mean to zero and the running variance to one."""
        if self.track_running_stats:
            self.running_mean[...] = 0
            self.running_var[...] = 1
            self.num_batches_tracked[...] = 0

    def reset_parameters(self) -> None:
        """Set scales to one, shifts to zero, and forget the running statistics."""
        self.reset_running_stats()
        _ones_and_zeros(self)

    def _check(self, input: Tensor) -> None:
        if input.ndim not in self.axes:
            raise ShapeError(
                f"[{type(self).__name__}] an input of {input.ndim} axes; give one of {self.axes}"
            )

    def _share(self) -> Any:
        """Count the batch; return the weight of its statistics: a number or a tensor."""
        if not (self.training and self.track_running_stats):
            return 0.0 if self.momentum is None else self.momentum
        self.num_batches_tracked += 1
        if self.momentum is not None:
            return self.momentum
        # A tensor: a captured function and a step of a budget cannot read the count while they are recorded.
        return 1.0 / native.cast(self.num_batches_tracked, dtypes.float64)

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_RunningNorm):
    """Mean 0 and variance 1 of each channel over the batch (S. Ioffe and C. Szegedy 2015).

    Parameters
    ----------
    num_features
        Channels.
    eps
        Added to the variance.
    momentum
        Share of a batch's statistics in the running ones; None for the mean of all batches.
    affine, bias
        Whether there are trained scales, and with them shifts.
    track_running_stats
        Whether there are running statistics, which evaluation takes.
    device, dtype
        Of parameters and buffers.

    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalize (N, C, ...)."""
        self._check(input)
        share = self._share()
        return functional.batch_norm(
            input,
            self.running_mean if not self.training or self.track_running_stats else None,
            self.running_var if not self.training or self.track_running_stats else None,
            self.weight,
            self.bias,
            self.training or self.running_mean is None,
            share,
            self.eps,
        )


class BatchNorm1d(_BatchNorm):
    __doc__ = _BatchNorm.__doc__
    axes = (2, 3)


class BatchNorm2d(_BatchNorm):
    __doc__ = _BatchNorm.__doc__
    axes = (4,)


class BatchNorm3d(_BatchNorm):
    __doc__ = _BatchNorm.__doc__
    axes = (5,)


class _InstanceNorm(_RunningNorm):
    """Mean 0 and variance 1 of each channel of each sample (D. Ulyanov et al. 2016).

    Parameters
    ----------
    num_features
        Channels.
    eps
        Added to the variance.
    momentum
        Share of a batch's statistics in the running ones.
    affine, bias
        Whether there are trained scales, and with them shifts.
    track_running_stats
        Whether there are running statistics, which evaluation takes.
    device, dtype
        Of parameters and buffers.

    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Device | None = None,
        dtype: DTypeLike | None = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)

    def forward(self, input: Tensor) -> Tensor:
        """Normalize (N, C, ...), or (C, ...) without a batch."""
        self._check(input)
        if input.ndim == self.axes[0]:
            return native.reshape(
                self._normalized(native.reshape(input, (1, *input.shape))), tuple(input.shape)
            )
        return self._normalized(input)

    def _normalized(self, input: Tensor) -> Tensor:
        return functional.instance_norm(
            input,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or not self.track_running_stats,
            0.1 if self.momentum is None else self.momentum,
            self.eps,
        )


class InstanceNorm1d(_InstanceNorm):
    __doc__ = _InstanceNorm.__doc__
    axes = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    __doc__ = _InstanceNorm.__doc__
    axes = (3, 4)


class InstanceNorm3d(_InstanceNorm):
    __doc__ = _InstanceNorm.__doc__
    axes = (4, 5)


class LocalResponseNorm(Module):
    """Each element over a power of the squares of its neighbours in other channels (A. Krizhevsky 2012).

    Parameters
    ----------
    size
        Channels whose squares are summed.
    alpha, beta, k
        The divisor is ``(k + alpha * mean) ** beta``.

    """

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, input: Tensor) -> Tensor:
        """Normalize (N, C, ...)."""
        return functional.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"
