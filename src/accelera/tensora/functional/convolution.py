"""Convolution and transposed convolution over one to three extents, and windows as columns.

Functions and arguments are named as in ``torch.nn.functional``. An image has the shape ``(images, channels,
*extents)``, or ``(channels, *extents)`` where there is one only. Shapes that do not fit and numbers out of
range raise ValueError, integers and types that differ TypeError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accelera.errors import ArgumentError, ShapeError
from accelera.tensora.amp import computes_in
from accelera.tensora.core import Tensor, native, require_tensors

Ints = int | Sequence[int]


def each_extent(name: str, what: str, value: Any, n: int) -> tuple[int, ...]:
    """One number for each extent."""
    values = (value,) * n if isinstance(value, int) else tuple(value)
    values = values * n if len(values) == 1 else values
    if len(values) != n or not all(isinstance(each, int) for each in values):
        raise ArgumentError(f"[{name}] {what}={value!r}; give an integer, or {n} of them")
    return values


def batched(name: str, x: Any, n: int) -> tuple[Any, bool]:
    """The tensor with an axis of images, and whether it had none."""
    require_tensors(x)
    if x.ndim not in (n + 1, n + 2):
        raise ShapeError(
            f"[{name}] an input of shape {tuple(x.shape)}; give (images, channels, {n} extents), or one image"
        )
    return (x, False) if x.ndim == n + 2 else (x[None], True)


def _is_complex(x: Tensor) -> bool:
    return str(x.dtype.name).startswith("complex")


@computes_in("lower")
def _conv(
    name: str, x: Any, weight: Any, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int
) -> Tensor:
    n = int(name[4])
    x, single = batched(name, x, n)
    if weight.ndim != n + 2:
        raise ShapeError(f"[{name}] a weight of shape {tuple(weight.shape)}; it needs {n + 2} axes")
    steps, gaps = each_extent(name, "stride", stride, n), each_extent(name, "dilation", dilation, n)
    if isinstance(padding, str):
        x, padding = _named_padding(
            name, x, padding, steps, [d * (k - 1) for d, k in zip(gaps, weight.shape[2:], strict=True)]
        )
    around = each_extent(name, "padding", padding, n)
    if _is_complex(x) or _is_complex(weight):
        result = _complex_conv(x, weight, bias, (steps, around, gaps, groups))
    else:
        result = native.conv(x, weight, bias, steps, around, gaps, groups)
    return result[0] if single else result


def _named_padding(name: str, x: Tensor, padding: str, steps: Any, reach: list[int]) -> tuple[Any, Any]:
    """The input, with more zeros at its end where 'same' needs them, and the padding of both sides."""
    if padding == "valid":
        return x, 0
    if padding != "same" or set(steps) != {1}:
        raise ArgumentError(
            f"[{name}] padding={padding!r} with strides {steps}; give numbers, 'valid', "
            "or 'same' with strides of 1"
        )
    if any(each % 2 for each in reach):
        shape = (*x.shape[:2], *(n + each % 2 for n, each in zip(x.shape[2:], reach, strict=True)))
        x = native.unslice(x, shape, (0,) * x.ndim, (1,) * x.ndim)
    return x, tuple(each // 2 for each in reach)


def _complex_conv(x: Tensor, weight: Tensor, bias: Tensor | None, windows: tuple[Any, ...]) -> Tensor:
    def parts(tensor: Tensor) -> tuple[Any, Any]:
        dtype = native.promote(x.dtype, weight.dtype)
        tensor = native.cast(tensor, dtype)
        return native.real(tensor), native.imag(tensor)

    (a, b), (c, d) = parts(x), parts(weight)
    real, imag = parts(bias) if bias is not None else (None, None)
    return native.complex(
        native.conv(a, c, real, *windows) - native.conv(b, d, None, *windows),
        native.conv(a, d, imag, *windows) + native.conv(b, c, None, *windows),
    )


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Ints | str = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution over one extent; see `conv2d`."""
    return _conv("conv1d", input, weight, bias, stride, padding, dilation, groups)


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Ints | str = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution over two extents, as neural networks understand it: the kernel is not turned around.

    Parameters
    ----------
    input
        Of shape ``(images, in_channels, height, width)``, or without images.
    weight
        Of shape ``(out_channels, in_channels / groups, kernel_height, kernel_width)`` and the same type.
    bias
        Of shape ``(out_channels,)``, or None.
    stride
        Steps between windows. All of these are one number, or one for each extent.
    padding
        Zeros before and behind each extent; "valid" for none, "same" for as many as keep the extents.
    dilation
        Steps between elements of the kernel.
    groups
        Parts of the channels that have kernels of their own.

    Returns
    -------
    Tensor
        Of shape ``(images, out_channels, out_height, out_width)``, where each extent is
        ``(extent + 2 padding - dilation (kernel - 1) - 1) // stride + 1``.

    Raises
    ------
    ValueError
        If shapes do not fit, or the kernel is larger than the padded input.
    TypeError
        If the types differ, or are integers.

    """
    return _conv("conv2d", input, weight, bias, stride, padding, dilation, groups)


def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Ints | str = 0,
    dilation: Ints = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution over three extents; see `conv2d`."""
    return _conv("conv3d", input, weight, bias, stride, padding, dilation, groups)


@computes_in("lower")
def _conv_transpose(
    n: int,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    windows: tuple[Any, Any, Any],
    output_padding: Any,
    groups: int,
) -> Tensor:
    name = f"conv_transpose{n}d"
    x, single = batched(name, x, n)
    if weight.ndim != n + 2 or weight.shape[0] != x.shape[1]:
        raise ShapeError(
            f"[{name}] a weight of shape {tuple(weight.shape)} for {x.shape[1]} channels; give (in_channels, "
            f"out_channels / groups, {n} extents)"
        )
    stride, padding, dilation = (
        each_extent(name, what, value, n)
        for what, value in zip(("stride", "padding", "dilation"), windows, strict=True)
    )
    more = each_extent(name, "output_padding", output_padding, n)
    if not all(0 <= extra < max(s, d) for extra, s, d in zip(more, stride, dilation, strict=True)):
        raise ArgumentError(f"[{name}] output_padding={more}; give less than the stride or the dilation")
    x, extents = _grown(name, x, weight, (stride, padding, dilation), more)
    result = _complex_transpose(x, weight, (stride, padding, dilation, groups, extents))
    if bias is not None:
        if tuple(bias.shape) != (result.shape[1],):
            raise ShapeError(f"[{name}] a bias of shape {tuple(bias.shape)} for {result.shape[1]} channels")
        result = result + native.reshape(bias, (-1, *(1,) * n))
    return result[0] if single else result


def _grown(name: str, x: Tensor, weight: Tensor, windows: tuple[Any, Any, Any], more: Any) -> tuple[Any, Any]:
    """The input, as large as a convolution of the result, and the extents of the result."""
    stride, padding, dilation = windows
    reach = tuple(d * (k - 1) + 1 for d, k in zip(dilation, weight.shape[2:], strict=True))
    sizes = zip(x.shape[2:], stride, padding, reach, more, strict=True)
    extents = tuple((size - 1) * s - 2 * p + r + extra for size, s, p, r, extra in sizes)
    if min(extents) < 1:
        raise ShapeError(f"[{name}] the result would have extents {extents}; give less padding")
    grown = zip(extents, stride, padding, reach, strict=True)
    places = tuple((size + 2 * p - r) // s + 1 for size, s, p, r in grown)
    if places != tuple(x.shape[2:]):  # an output padding of a whole stride
        x = native.unslice(x, (*x.shape[:2], *places), (0,) * x.ndim, (1,) * x.ndim)
    return x, extents


def _complex_transpose(x: Tensor, weight: Tensor, windows: tuple[Any, ...]) -> Tensor:
    if not (_is_complex(x) or _is_complex(weight)):
        return native.conv_input(x, weight, *windows)
    dtype = native.promote(x.dtype, weight.dtype)
    x, weight = native.cast(x, dtype), native.cast(weight, dtype)
    a, b, c, d = native.real(x), native.imag(x), native.real(weight), native.imag(weight)
    return native.complex(
        native.conv_input(a, c, *windows) - native.conv_input(b, d, *windows),
        native.conv_input(a, d, *windows) + native.conv_input(b, c, *windows),
    )


def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Ints = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> Tensor:
    """Transposed convolution over one extent; see `conv_transpose2d`."""
    return _conv_transpose(1, input, weight, bias, (stride, padding, dilation), output_padding, groups)


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Ints = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> Tensor:
    """Transposed convolution over two extents: the linear map that is the gradient of `conv2d`.

    Parameters
    ----------
    input
        Of shape ``(images, in_channels, height, width)``, or without images.
    weight
        Of shape ``(in_channels, out_channels / groups, kernel_height, kernel_width)``.
    bias, stride, padding, groups, dilation
        As for `conv2d`, of the convolution that is transposed.
    output_padding
        Added to the extents of the result: with strides, inputs of several extents have one result.

    Returns
    -------
    Tensor
        With extents ``(extent - 1) stride - 2 padding + dilation (kernel - 1) + output_padding + 1``.

    """
    return _conv_transpose(2, input, weight, bias, (stride, padding, dilation), output_padding, groups)


def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Ints = 1,
    padding: Ints = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> Tensor:
    """Transposed convolution over three extents; see `conv_transpose2d`."""
    return _conv_transpose(3, input, weight, bias, (stride, padding, dilation), output_padding, groups)


# --- windows as columns -----------------------------------------------------------------------------------


def unfold(
    input: Tensor, kernel_size: Ints, dilation: Ints = 1, padding: Ints = 0, stride: Ints = 1
) -> Tensor:
    """Windows over images as columns.

    Parameters
    ----------
    input
        Of shape ``(images, channels, height, width)``, or without images.
    kernel_size, dilation, padding, stride
        As for `conv2d`.

    Returns
    -------
    Tensor
        Of shape ``(images, channels * kernel_height * kernel_width, windows)``.

    """
    x, single = batched("unfold", input, 2)
    kernel, steps, around, gaps = _windows("unfold", kernel_size, stride, padding, dilation)
    result = native.unfold(x, kernel, steps, around, gaps)
    return result[0] if single else result


def fold(
    input: Tensor,
    output_size: Ints,
    kernel_size: Ints,
    dilation: Ints = 1,
    padding: Ints = 0,
    stride: Ints = 1,
) -> Tensor:
    """Sum of columns where `unfold` took them from, in images of extents `output_size`.

    Parameters
    ----------
    input
        Of shape ``(images, channels * kernel_height * kernel_width, windows)``, or without images.
    output_size
        Height and width of the result.
    kernel_size, dilation, padding, stride
        As they were given to `unfold`.

    """
    if input.ndim not in (2, 3):
        raise ShapeError(f"[fold] shape {input.shape}; give (images, channels * window, windows)")
    outs = each_extent("fold", "output_size", output_size, 2)
    kernel, steps, around, gaps = _windows("fold", kernel_size, stride, padding, dilation)
    single = input.ndim == 2
    result = native.fold(input[None] if single else input, outs, kernel, steps, around, gaps)
    return result[0] if single else result


def _windows(name: str, kernel_size: Ints, stride: Ints, padding: Ints, dilation: Ints) -> Any:
    given = {"kernel_size": kernel_size, "stride": stride, "padding": padding, "dilation": dilation}
    return (each_extent(name, what, value, 2) for what, value in given.items())
