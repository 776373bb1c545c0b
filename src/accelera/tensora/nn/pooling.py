"""Pools over windows and over parts of the input."""

from __future__ import annotations

from typing import Any

from accelera.tensora import functional
from accelera.tensora.core import Tensor
from accelera.tensora.nn.module import Module

Extents = int | tuple[int, ...]


class _Pool(Module):
    """Function of the input with options, which are attributes of the same names."""

    function: Any
    options: tuple[str, ...]

    def forward(self, input: Tensor) -> Any:
        """Pool the last axes of (N, C, ...), or of (C, ...) without a batch."""
        return type(self).function(input, **{name: getattr(self, name) for name in self.options})

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)}" for name in self.options)


class _MaxPool(_Pool):
    """Largest element of each window.

    Parameters
    ----------
    kernel_size, stride, padding, dilation
        Of the windows; the stride is the kernel's size if none is given.
    return_indices
        Whether the places of the elements are returned too.
    ceil_mode
        Whether windows that reach over the end count.

    """

    options = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")

    def __init__(
        self,
        kernel_size: Extents,
        stride: Extents | None = None,
        padding: Extents = 0,
        dilation: Extents = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.kernel_size, self.padding, self.dilation = kernel_size, padding, dilation
        self.stride = kernel_size if stride is None else stride
        self.return_indices, self.ceil_mode = return_indices, ceil_mode


class MaxPool1d(_MaxPool):
    __doc__ = _MaxPool.__doc__
    function = functional.max_pool1d


class MaxPool2d(_MaxPool):
    __doc__ = _MaxPool.__doc__
    function = functional.max_pool2d


class MaxPool3d(_MaxPool):
    __doc__ = _MaxPool.__doc__
    function = functional.max_pool3d


class AvgPool1d(_Pool):
    """Mean of each window.

    Parameters
    ----------
    kernel_size, stride, padding
        Of the windows; the stride is the kernel's size if none is given.
    ceil_mode
        Whether windows that reach over the end count.
    count_include_pad
        Whether zeros of the padding count.

    """

    function = functional.avg_pool1d
    options: tuple[str, ...] = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")

    def __init__(
        self,
        kernel_size: Extents,
        stride: Extents | None = None,
        padding: Extents = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__()
        self.kernel_size, self.padding = kernel_size, padding
        self.stride = kernel_size if stride is None else stride
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad


class _AvgPool(AvgPool1d):
    """Mean of each window.

    Parameters
    ----------
    kernel_size, stride, padding
        Of the windows; the stride is the kernel's size if none is given.
    ceil_mode
        Whether windows that reach over the end count.
    count_include_pad
        Whether zeros of the padding count.
    divisor_override
        Divides the sums, instead of the number of elements.

    """

    options = (*AvgPool1d.options, "divisor_override")

    def __init__(
        self,
        kernel_size: Extents,
        stride: Extents | None = None,
        padding: Extents = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__(kernel_size, stride, padding, ceil_mode, count_include_pad)
        self.divisor_override = divisor_override


class AvgPool2d(_AvgPool):
    __doc__ = _AvgPool.__doc__
    function = functional.avg_pool2d


class AvgPool3d(_AvgPool):
    __doc__ = _AvgPool.__doc__
    function = functional.avg_pool3d


class _LPPool(_Pool):
    """Root of the sum of powers of each window.

    Parameters
    ----------
    norm_type
        Exponent.
    kernel_size, stride
        Of the windows; the stride is the kernel's size if none is given.
    ceil_mode
        Whether windows that reach over the end count.

    """

    options = ("norm_type", "kernel_size", "stride", "ceil_mode")

    def __init__(
        self, norm_type: float, kernel_size: Extents, stride: Extents | None = None, ceil_mode: bool = False
    ) -> None:
        super().__init__()
        self.norm_type, self.kernel_size = norm_type, kernel_size
        self.stride = kernel_size if stride is None else stride
        self.ceil_mode = ceil_mode


class LPPool1d(_LPPool):
    __doc__ = _LPPool.__doc__
    function = functional.lp_pool1d


class LPPool2d(_LPPool):
    __doc__ = _LPPool.__doc__
    function = functional.lp_pool2d


class LPPool3d(_LPPool):
    __doc__ = _LPPool.__doc__
    function = functional.lp_pool3d


class _AdaptiveAvgPool(_Pool):
    """Mean of each of so many parts of the input.

    Parameters
    ----------
    output_size
        Parts along each axis; None keeps the extent.

    """

    options = ("output_size",)

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size


class AdaptiveAvgPool1d(_AdaptiveAvgPool):
    __doc__ = _AdaptiveAvgPool.__doc__
    function = functional.adaptive_avg_pool1d


class AdaptiveAvgPool2d(_AdaptiveAvgPool):
    __doc__ = _AdaptiveAvgPool.__doc__
    function = functional.adaptive_avg_pool2d


class AdaptiveAvgPool3d(_AdaptiveAvgPool):
    __doc__ = _AdaptiveAvgPool.__doc__
    function = functional.adaptive_avg_pool3d


class _AdaptiveMaxPool(_Pool):
    """Largest element of each of so many parts of the input.

    Parameters
    ----------
    output_size
        Parts along each axis; None keeps the extent.
    return_indices
        Whether the places of the elements are returned too.

    """

    options = ("output_size", "return_indices")

    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        super().__init__()
        self.output_size, self.return_indices = output_size, return_indices


class AdaptiveMaxPool1d(_AdaptiveMaxPool):
    __doc__ = _AdaptiveMaxPool.__doc__
    function = functional.adaptive_max_pool1d


class AdaptiveMaxPool2d(_AdaptiveMaxPool):
    __doc__ = _AdaptiveMaxPool.__doc__
    function = functional.adaptive_max_pool2d


class AdaptiveMaxPool3d(_AdaptiveMaxPool):
    __doc__ = _AdaptiveMaxPool.__doc__
    function = functional.adaptive_max_pool3d


class _MaxUnpool(Module):
    """Elements of a max pool at the places that they came from, and zeros.

    Parameters
    ----------
    kernel_size, stride, padding
        Of the pool.

    """

    function: Any

    def __init__(self, kernel_size: Extents, stride: Extents | None = None, padding: Extents = 0) -> None:
        super().__init__()
        self.kernel_size, self.padding = kernel_size, padding
        self.stride = kernel_size if stride is None else stride

    def forward(self, input: Tensor, indices: Any, output_size: Any = None) -> Tensor:
        """Put elements at their places; `output_size` says which of the possible extents the output has."""
        return type(self).function(input, indices, self.kernel_size, self.stride, self.padding, output_size)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxUnpool1d(_MaxUnpool):
    __doc__ = _MaxUnpool.__doc__
    function = functional.max_unpool1d


class MaxUnpool2d(_MaxUnpool):
    __doc__ = _MaxUnpool.__doc__
    function = functional.max_unpool2d


class MaxUnpool3d(_MaxUnpool):
    __doc__ = _MaxUnpool.__doc__
    function = functional.max_unpool3d
