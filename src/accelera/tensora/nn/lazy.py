"""Lazy modules: layers that learn how many inputs they have from their first one, or from a state."""

from __future__ import annotations

from typing import Any, ClassVar

from accelera.errors import ShapeError
from accelera.tensora import creation
from accelera.tensora.core import Tensor, native
from accelera.tensora.nn.convolution import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    Extents,
)
from accelera.tensora.nn.linear import Linear
from accelera.tensora.nn.module import Module
from accelera.tensora.nn.normalization import BatchNorm1d, BatchNorm2d, BatchNorm3d
from accelera.tensora.typing import Device, DTypeLike


class _Lazy(Module):
    """Layer whose number of inputs is not known yet; until then its parameters have no elements.

    With the first input it turns into the layer `becomes`. Parameters stay the same objects, as an optimizer
    may hold them.
    """

    becomes: ClassVar[type[Module]]
    extent: ClassVar[str]
    """Attribute with the number of inputs."""
    sized: ClassVar[tuple[str, ...]]
    """Parameters and buffers whose shape depends on it."""

    def _clear_shapes(self) -> None:
        """Empty the tensors whose shape depends on the number of inputs."""
        setattr(self, self.extent, 0)
        for name in self.sized:
            self._resize(name, (0,))

    def _resize(self, name: str, shape: tuple[int, ...]) -> None:
        tensor = getattr(self, name)
        if tensor is not None:
            native.set_data(tensor, creation.empty(shape, dtype=tensor.dtype, device=tensor.device))
            if name in self._parameters:
                native.set_role(tensor, "parameter")

    def reset_parameters(self) -> None:
        """Draw nothing: the parameters have no elements yet."""

    def _shape(self, inputs: int) -> tuple[int, ...]:
        raise NotImplementedError

    def _inputs_from_input(self, input: Tensor) -> int:
        raise NotImplementedError

    def _inputs_from_shape(self, shape: tuple[int, ...]) -> int:
        """Return the number of inputs, from the shape of the first tensor of `sized` in a state."""
        raise NotImplementedError

    def _materialize(self, inputs: int) -> None:
        setattr(self, self.extent, inputs)
        for name in self.sized:
            self._resize(name, self._shape(inputs))
        self.__class__ = self.becomes  # type: ignore[assignment]
        self.reset_parameters()

    def _prepare_load(self, state_dict: dict[str, Any], start: str) -> None:
        for name in self.sized:
            shape = tuple(getattr(state_dict.get(start + name), "shape", (0,)))
            if shape != (0,):
                return self._materialize(self._inputs_from_shape(shape))

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Take the number of inputs from the input, turn into the real layer, and run that."""
        self._materialize(self._inputs_from_input(args[0]))
        return self.forward(*args, **kwargs)


class LazyLinear(_Lazy, Linear):
    """`Linear` that takes `in_features` from its first input.

    Parameters
    ----------
    out_features
        Length of the last axis of the output.
    bias
        Whether there is one.
    device, dtype
        Of the parameters.

    """

    becomes = Linear
    extent = "in_features"
    sized = ("weight",)

    def __init__(
        self,
        out_features: int,
        bias: bool = True,
        device: Device | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        Linear.__init__(self, 0, out_features, bias, device, dtype)
        self._clear_shapes()

    def _shape(self, inputs: int) -> tuple[int, ...]:
        return self.out_features, inputs

    def _inputs_from_input(self, input: Tensor) -> int:
        return int(input.shape[-1])

    def _inputs_from_shape(self, shape: tuple[int, ...]) -> int:
        return shape[1]


# --- convolutions -----------------------------------------------------------------------------------------


class _LazyConvolution(_Lazy):
    extent = "in_channels"
    sized = ("weight",)
    axes: int
    groups: int
    out_channels: int
    kernel_size: tuple[int, ...]
    transposed: bool

    def _shape(self, inputs: int) -> tuple[int, ...]:
        if inputs % self.groups:
            raise ShapeError(
                f"[{type(self).__name__}] {inputs} channels in {self.groups} groups; give a multiple"
            )
        if self.transposed:
            return inputs, self.out_channels // self.groups, *self.kernel_size
        return self.out_channels, inputs // self.groups, *self.kernel_size

    def _inputs_from_input(self, input: Tensor) -> int:
        if input.ndim not in (self.axes + 1, self.axes + 2):
            raise ShapeError(
                f"[{type(self).__name__}] an input of {input.ndim} axes; "
                f"give {self.axes + 2}, or {self.axes + 1} without a batch"
            )
        return int(input.shape[-self.axes - 1])

    def _inputs_from_shape(self, shape: tuple[int, ...]) -> int:
        return shape[0] if self.transposed else shape[1] * self.groups


class _LazyForward(_LazyConvolution):
    """Convolution that takes `in_channels` from its first input; for the rest see `{name}`."""

    def __init__(
        self,
        out_channels: int,
        kernel_size: Extents,
        stride: Extents = 1,
        padding: Extents | str = 0,
        dilation: Extents = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Device | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        # As many inputs as groups, which fits, until they are known.
        super().__init__(  # type: ignore[call-arg]
            groups,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )
        self._clear_shapes()


class LazyConv1d(_LazyForward, Conv1d):
    __doc__ = (_LazyForward.__doc__ or "").format(name="Conv1d")
    becomes = Conv1d


class LazyConv2d(_LazyForward, Conv2d):
    __doc__ = (_LazyForward.__doc__ or "").format(name="Conv2d")
    becomes = Conv2d


class LazyConv3d(_LazyForward, Conv3d):
    __doc__ = (_LazyForward.__doc__ or "").format(name="Conv3d")
    becomes = Conv3d


class _LazyTransposed(_LazyConvolution):
    """Convolution that takes `in_channels` from its first input; for the rest see `{name}`."""

    def __init__(
        self,
        out_channels: int,
        kernel_size: Extents,
        stride: Extents = 1,
        padding: Extents = 0,
        output_padding: Extents = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Extents = 1,
        padding_mode: str = "zeros",
        device: Device | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(  # type: ignore[call-arg]
            groups,
            out_channels,
            kernel_size,
            stride,
            padding,
            output_padding,
            groups,
            bias,
            dilation,
            padding_mode,
            device,
            dtype,
        )
        self._clear_shapes()


class LazyConvTranspose1d(_LazyTransposed, ConvTranspose1d):
    __doc__ = (_LazyTransposed.__doc__ or "").format(name="ConvTranspose1d")
    becomes = ConvTranspose1d


class LazyConvTranspose2d(_LazyTransposed, ConvTranspose2d):
    __doc__ = (_LazyTransposed.__doc__ or "").format(name="ConvTranspose2d")
    becomes = ConvTranspose2d


class LazyConvTranspose3d(_LazyTransposed, ConvTranspose3d):
    __doc__ = (_LazyTransposed.__doc__ or "").format(name="ConvTranspose3d")
    becomes = ConvTranspose3d


# --- normalization ----------------------------------------------------------------------------------------


class _LazyBatchNorm(_Lazy):
    """Batch norm that takes `num_features` from its first input; for the rest see `{name}`."""

    extent = "num_features"
    sized = ("weight", "bias", "running_mean", "running_var")

    def __init__(
        self,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Device | None = None,
        dtype: DTypeLike | None = None,
        *,
        bias: bool = True,
    ) -> None:
        options = (eps, momentum, affine, track_running_stats, device, dtype)
        super().__init__(0, *options, bias=bias)  # type: ignore[call-arg]

    def _shape(self, inputs: int) -> tuple[int, ...]:
        return (inputs,)

    def _inputs_from_input(self, input: Tensor) -> int:
        return int(input.shape[1])

    def _inputs_from_shape(self, shape: tuple[int, ...]) -> int:
        return shape[0]


class LazyBatchNorm1d(_LazyBatchNorm, BatchNorm1d):
    __doc__ = (_LazyBatchNorm.__doc__ or "").format(name="BatchNorm1d")
    becomes = BatchNorm1d


class LazyBatchNorm2d(_LazyBatchNorm, BatchNorm2d):
    __doc__ = (_LazyBatchNorm.__doc__ or "").format(name="BatchNorm2d")
    becomes = BatchNorm2d


class LazyBatchNorm3d(_LazyBatchNorm, BatchNorm3d):
    __doc__ = (_LazyBatchNorm.__doc__ or "").format(name="BatchNorm3d")
    becomes = BatchNorm3d
