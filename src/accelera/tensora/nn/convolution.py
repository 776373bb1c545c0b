"""Convolutions with trained weights."""

from __future__ import annotations

import math
from typing import Any

from accelera.errors import ArgumentError, ShapeError
from accelera.tensora import functional
from accelera.tensora.core import Tensor
from accelera.tensora.nn import init
from accelera.tensora.nn.linear import made
from accelera.tensora.nn.module import Module
from accelera.tensora.typing import Device, DTypeLike

Extents = int | tuple[int, ...]


def extents(value: Extents, n: int) -> tuple[int, ...]:
    """One number for each axis."""
    return (value,) * n if isinstance(value, int) else tuple(value)


class _WindowModule(Module):
    axes: int
    transposed = False
    bias: Any

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Extents,
        stride: Extents,
        padding: Extents | str,
        dilation: Extents,
        groups: int,
        bias: bool,
        padding_mode: str,
        output_padding: Extents,
        device: Device | None,
        dtype: DTypeLike | None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ShapeError(
                f"[{name}] {in_channels} and {out_channels} channels in {groups} groups; give a divisor"
            )
        modes = ("zeros",) if self.transposed else ("zeros", "reflect", "replicate", "circular")
        if padding_mode not in modes:
            raise ArgumentError(f"[{name}] padding_mode={padding_mode!r}; give one of {', '.join(modes)}")
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size, self.stride = extents(kernel_size, self.axes), extents(stride, self.axes)
        self.dilation = extents(dilation, self.axes)
        self.padding = padding if isinstance(padding, str) else extents(padding, self.axes)
        self.output_padding = extents(output_padding, self.axes)
        self.padding_mode = padding_mode
        first = (
            (in_channels, out_channels // groups)
            if self.transposed
            else (out_channels, in_channels // groups)
        )
        self.weight = made((*first, *self.kernel_size), device, dtype)
        self.register_parameter("bias", made((out_channels,), device, dtype) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights and biases from uniform numbers within the root of the inputs of each output."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            fan_in, _ = init.fans(self.weight)
            if fan_in:
                init.uniform_(self.bias, -1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in))

    def extra_repr(self) -> str:
        words = (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        )
        if self.padding != (0,) * self.axes:
            words += f", padding={self.padding}"
        if self.dilation != (1,) * self.axes:
            words += f", dilation={self.dilation}"
        if self.output_padding != (0,) * self.axes:
            words += f", output_padding={self.output_padding}"
        if self.groups != 1:
            words += f", groups={self.groups}"
        if self.bias is None:
            words += ", bias=False"
        return words if self.padding_mode == "zeros" else f"{words}, padding_mode={self.padding_mode}"


class _Forward(_WindowModule):
    """Convolution of (N, C, ...) with windows along {axes}.

    Parameters
    ----------
    in_channels, out_channels
        Channels of input and output.
    kernel_size, stride, dilation
        Of the windows: one number, or one for each axis.
    padding
        Added at both ends of each axis; ``"valid"`` for none, ``"same"`` for as much as keeps the extent.
    groups
        Into which the channels are cut; each output sees the inputs of its group.
    bias
        Whether there is one.
    padding_mode
        ``"zeros"``, ``"reflect"``, ``"replicate"`` or ``"circular"``.
    device, dtype
        Of the parameters.

    """

    function: Any

    def __init__(
        self,
        in_channels: int,
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
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            padding_mode,
            0,
            device,
            dtype,
        )

    def _padding(self) -> list[int]:
        """Both ends of each axis, the last axis first."""
        found: list[int] = []
        for i in reversed(range(self.axes)):
            if self.padding == "same":
                total = self.dilation[i] * (self.kernel_size[i] - 1)
                found += [total // 2, total - total // 2]
            else:
                each = 0 if self.padding == "valid" else int(self.padding[i])
                found += [each, each]
        return found

    def forward(self, input: Tensor) -> Tensor:
        """Convolve the input."""
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            input = functional.pad(input, self._padding(), self.padding_mode)
            padding = 0
        return type(self).function(
            input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups
        )


class Conv1d(_Forward):
    __doc__ = (_Forward.__doc__ or "").format(axes="one axis")
    axes = 1
    function = functional.conv1d


class Conv2d(_Forward):
    __doc__ = (_Forward.__doc__ or "").format(axes="two axes")
    axes = 2
    function = functional.conv2d


class Conv3d(_Forward):
    __doc__ = (_Forward.__doc__ or "").format(axes="three axes")
    axes = 3
    function = functional.conv3d


class _Transposed(_WindowModule):
    """Transposed convolution of (N, C, ...) with windows along {axes}.

    Parameters
    ----------
    in_channels, out_channels
        Channels of input and output.
    kernel_size, stride, dilation
        Of the windows: one number, or one for each axis.
    padding
        Cut off at both ends of each axis.
    output_padding
        Added at the far end of each axis.
    groups
        Into which the channels are cut.
    bias
        Whether there is one.
    padding_mode
        ``"zeros"``.
    device, dtype
        Of the parameters.

    """

    function: Any
    transposed = True

    def __init__(
        self,
        in_channels: int,
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
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            padding_mode,
            output_padding,
            device,
            dtype,
        )

    def forward(self, input: Tensor, output_size: Any = None) -> Tensor:
        """Convolve the input; `output_size` says which of the possible extents the output has.

        Raises
        ------
        ValueError
            If `output_size` is not possible.

        """
        added = self.output_padding if output_size is None else self._added(input, tuple(output_size))
        return type(self).function(
            input, self.weight, self.bias, self.stride, self.padding, added, self.groups, self.dilation
        )

    def _added(self, input: Tensor, wanted: tuple[int, ...]) -> tuple[int, ...]:
        wanted = wanted[-self.axes :]
        given = tuple(input.shape)[-self.axes :]
        least = tuple(
            (given[i] - 1) * self.stride[i]
            - 2 * int(self.padding[i])
            + self.dilation[i] * (self.kernel_size[i] - 1)
            + 1
            for i in range(self.axes)
        )
        added = tuple(a - b for a, b in zip(wanted, least, strict=True))
        if any(not 0 <= each < max(stride, 1) for each, stride in zip(added, self.stride, strict=True)):
            most = tuple(a + b - 1 for a, b in zip(least, self.stride, strict=True))
            raise ShapeError(
                f"[{type(self).__name__}] output_size={wanted}; give extents from {least} to {most}"
            )
        return added


class ConvTranspose1d(_Transposed):
    __doc__ = (_Transposed.__doc__ or "").format(axes="one axis")
    axes = 1
    function = functional.conv_transpose1d


class ConvTranspose2d(_Transposed):
    __doc__ = (_Transposed.__doc__ or "").format(axes="two axes")
    axes = 2
    function = functional.conv_transpose2d


class ConvTranspose3d(_Transposed):
    __doc__ = (_Transposed.__doc__ or "").format(axes="three axes")
    axes = 3
    function = functional.conv_transpose3d
