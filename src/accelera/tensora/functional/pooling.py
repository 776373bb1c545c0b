"""Pooling over one to three extents: one number for each window of each channel.

Functions and arguments are named as in ``torch.nn.functional``. An image has the shape ``(images, channels,
*extents)``, or ``(channels, *extents)`` where there is one only. Shapes that do not fit and numbers out of
range raise ValueError, integers TypeError.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from accelera.errors import ArgumentError, ShapeError
from accelera.tensora.amp import computes_in
from accelera.tensora.core import Tensor, native
from accelera.tensora.functional.convolution import Ints, batched, each_extent

Wished = int | Sequence[int | None] | None


def _kernel(name: str, kernel_size: Ints, stride: Ints | None, n: int) -> tuple[Any, Any]:
    """Extents of the windows, and steps between them: side by side without strides."""
    kernel = each_extent(name, "kernel_size", kernel_size, n)
    return kernel, kernel if stride is None or stride == [] else each_extent(name, "stride", stride, n)


# --- largest element --------------------------------------------------------------------------------------


def _max_pool(
    n: int,
    x: Tensor,
    kernel_size: Ints,
    stride: Ints | None,
    places: tuple[Ints, Ints],
    ceil_mode: bool,
    indices: bool,
) -> Any:
    name = f"max_pool{n}d"
    x, single = batched(name, x, n)
    kernel, steps = _kernel(name, kernel_size, stride, n)
    around, gaps = (
        each_extent(name, what, value, n) for what, value in zip(("padding", "dilation"), places, strict=True)
    )
    values, at = native.max_pool(x, kernel, steps, around, gaps, ceil_mode)
    if single:
        values, at = values[0], at[0]
    # A copy: the backward pass reads `at`, and the caller may change the result.
    return (values, native.copy(at)) if indices else values


_max_pool_in_float32 = computes_in("float32")(_max_pool)


def max_pool1d(
    input: Tensor,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Largest element of each window over one extent; see `max_pool2d`."""
    return _max_pool(1, input, kernel_size, stride, (padding, dilation), ceil_mode, return_indices)


def max_pool2d(
    input: Tensor,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Largest element of each window.

    Parameters
    ----------
    input
        Image, or batch of them.
    kernel_size, stride, padding, dilation
        One number, or one for each extent, as in `conv2d`; windows lie side by side without `stride`. Padding
        is never the largest element, and at most half of a window.
    ceil_mode
        Whether a last window may reach over the end.
    return_indices
        Whether to return a pair, with the place of each element in its flattened channel, as int64.

    """
    return _max_pool(2, input, kernel_size, stride, (padding, dilation), ceil_mode, return_indices)


def max_pool3d(
    input: Tensor,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Largest element of each window over three extents; see `max_pool2d`."""
    pool = _max_pool if return_indices else _max_pool_in_float32  # as PyTorch's list has it
    return pool(3, input, kernel_size, stride, (padding, dilation), ceil_mode, return_indices)


def _adaptive(name: str, x: Tensor, output_size: Wished) -> tuple[Any, bool, tuple[int, ...]]:
    """Return the input with a batch axis, whether that was added, and the requested output extents."""
    n = int(name[-2])
    x, single = batched(name, x, n)
    wished = tuple(output_size) if isinstance(output_size, Sequence) else (output_size,) * n
    if len(wished) != n:
        raise ArgumentError(f"[{name}] output_size={output_size!r}; give one number, or {n}")
    outs = (own if each is None else each for each, own in zip(wished, x.shape[2:], strict=True))
    return x, single, tuple(outs)


def _adaptive_max_pool(n: int, x: Tensor, output_size: Wished, indices: bool) -> Any:
    x, single, outs = _adaptive(f"adaptive_max_pool{n}d", x, output_size)
    values, at = native.adaptive_max_pool(x, outs)
    if single:
        values, at = values[0], at[0]
    # A copy: the backward pass reads `at`, and the caller may change the result.
    return (values, native.copy(at)) if indices else values


def adaptive_max_pool1d(input: Tensor, output_size: Wished, return_indices: bool = False) -> Tensor:
    """Largest elements of windows that share one extent evenly; see `adaptive_max_pool2d`."""
    return _adaptive_max_pool(1, input, output_size, return_indices)


def adaptive_max_pool2d(input: Tensor, output_size: Wished, return_indices: bool = False) -> Tensor:
    """Largest elements of windows that share the image evenly; they may overlap.

    Parameters
    ----------
    input
        Image, or batch of them.
    output_size
        Windows on each extent; None for as many as there are elements.
    return_indices
        As for `max_pool2d`.

    """
    return _adaptive_max_pool(2, input, output_size, return_indices)


@computes_in("float32")
def adaptive_max_pool3d(input: Tensor, output_size: Wished, return_indices: bool = False) -> Tensor:
    """Largest elements of windows that share three extents evenly; see `adaptive_max_pool2d`."""
    return _adaptive_max_pool(3, input, output_size, return_indices)


def _max_unpool(
    n: int, x: Tensor, indices: Any, kernel_size: Ints, stride: Ints | None, padding: Ints, output_size: Any
) -> Tensor:
    name = f"max_unpool{n}d"
    if tuple(indices.shape) != tuple(x.shape):
        raise ShapeError(
            f"[{name}] indices of shape {indices.shape} for {x.shape}; give one for each element"
        )
    x, single = batched(name, x, n)
    kernel, steps = _kernel(name, kernel_size, stride, n)
    around = each_extent(name, "padding", padding, n)
    sizes = zip(x.shape[2:], steps, around, kernel, strict=True)
    outs = tuple((extent - 1) * s - 2 * p + k for extent, s, p, k in sizes)
    if output_size is not None:
        outs = tuple(output_size)[-n:]
    size, planes = math.prod(outs), x.shape[0] * x.shape[1]
    flat = native.reshape(indices, (planes, x.size // max(planes, 1)))
    if not native.holds(native.all(native.logical_and(flat >= 0, flat < size))):
        raise ShapeError(f"[{name}] indices outside of the {size} places of extents {outs}; give output_size")
    places = native.reshape(flat + native.reshape(native.arange(planes), (planes, 1)) * size, (x.size,))
    nothing = native.full((planes * size,), 0, x.dtype)
    result = native.put(nothing, places, native.reshape(x, (x.size,)), 0)
    result = native.reshape(result, (*x.shape[:2], *outs))
    return result[0] if single else result


@computes_in("float32")
def max_unpool1d(
    input: Tensor,
    indices: Tensor,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """Zeros with each element where `max_pool1d` took it from; see `max_unpool2d`."""
    return _max_unpool(1, input, indices, kernel_size, stride, padding, output_size)


@computes_in("float32")
def max_unpool2d(
    input: Tensor,
    indices: Tensor,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """Zeros with each element where `max_pool2d` took it from.

    Parameters
    ----------
    input, indices
        What `max_pool2d` returned with ``return_indices=True``.
    kernel_size, stride, padding
        That it was given.
    output_size
        Shape of its input, where several inputs have the same windows.

    """
    return _max_unpool(2, input, indices, kernel_size, stride, padding, output_size)


@computes_in("float32")
def max_unpool3d(
    input: Tensor,
    indices: Tensor,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """Zeros with each element where `max_pool3d` took it from; see `max_unpool2d`."""
    return _max_unpool(3, input, indices, kernel_size, stride, padding, output_size)


# --- means ------------------------------------------------------------------------------------------------


def _avg_pool(
    n: int,
    x: Tensor,
    kernel_size: Ints,
    stride: Ints | None,
    padding: Ints,
    ceil_mode: bool,
    mean: tuple[bool, int | None],
) -> Tensor:
    name = f"avg_pool{n}d"
    x, single = batched(name, x, n)
    kernel, steps = _kernel(name, kernel_size, stride, n)
    count_include_pad, divisor = mean
    if divisor == 0:
        raise ArgumentError(f"[{name}] divisor_override=0; give another number, or None")
    around = each_extent(name, "padding", padding, n)
    result = native.avg_pool(x, kernel, steps, around, ceil_mode, count_include_pad, divisor or 0)
    return result[0] if single else result


def avg_pool1d(
    input: Tensor,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """Mean of each window over one extent; see `avg_pool2d`."""
    return _avg_pool(1, input, kernel_size, stride, padding, ceil_mode, (count_include_pad, None))


def avg_pool2d(
    input: Tensor,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Mean of each window.

    Parameters
    ----------
    input, kernel_size, stride, ceil_mode
        As for `max_pool2d`.
    padding
        Zeros around the image, at most half of a window.
    count_include_pad
        Whether these zeros count as elements.
    divisor_override
        What sums are divided by, instead of the number of elements.

    """
    return _avg_pool(2, input, kernel_size, stride, padding, ceil_mode, (count_include_pad, divisor_override))


@computes_in("float32")
def avg_pool3d(
    input: Tensor,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Mean of each window over three extents; see `avg_pool2d`."""
    return _avg_pool(3, input, kernel_size, stride, padding, ceil_mode, (count_include_pad, divisor_override))


def _adaptive_avg_pool(n: int, x: Tensor, output_size: Wished) -> Tensor:
    x, single, outs = _adaptive(f"adaptive_avg_pool{n}d", x, output_size)
    result = native.adaptive_avg_pool(x, outs)
    return result[0] if single else result


def adaptive_avg_pool1d(input: Tensor, output_size: Wished) -> Tensor:
    """Means of windows that share one extent evenly; arguments as for `adaptive_max_pool2d`."""
    return _adaptive_avg_pool(1, input, output_size)


def adaptive_avg_pool2d(input: Tensor, output_size: Wished) -> Tensor:
    """Means of windows that share two extents evenly; arguments as for `adaptive_max_pool2d`."""
    return _adaptive_avg_pool(2, input, output_size)


@computes_in("float32")
def adaptive_avg_pool3d(input: Tensor, output_size: Wished) -> Tensor:
    """Means of windows that share three extents evenly; arguments as for `adaptive_max_pool2d`."""
    return _adaptive_avg_pool(3, input, output_size)


def _lp_pool(
    n: int, x: Tensor, norm_type: float, kernel_size: Ints, stride: Ints | None, ceil_mode: bool
) -> Tensor:
    name = f"lp_pool{n}d"
    x, single = batched(name, x, n)
    kernel, steps = _kernel(name, kernel_size, stride, n)
    power = native.asarray(float(norm_type), x.dtype)
    means = native.avg_pool(native.pow(x, power), kernel, steps, (0,) * n, ceil_mode, True, 0)
    sums = native.relu(native.abs(means)) * native.sign(means) * math.prod(kernel)
    result = native.pow(sums, native.asarray(1.0 / norm_type, x.dtype))
    return result[0] if single else result


def lp_pool1d(
    input: Tensor, norm_type: float, kernel_size: Ints, stride: Ints | None = None, ceil_mode: bool = False
) -> Tensor:
    """Norm of each window over one extent; see `lp_pool2d`."""
    return _lp_pool(1, input, norm_type, kernel_size, stride, ceil_mode)


def lp_pool2d(
    input: Tensor, norm_type: float, kernel_size: Ints, stride: Ints | None = None, ceil_mode: bool = False
) -> Tensor:
    """Norm of each window: the root of the sum of powers, ``(sum x**p) ** (1 / p)``.

    Parameters
    ----------
    input, kernel_size, stride, ceil_mode
        As for `max_pool2d`.
    norm_type
        The power p. Elements are taken as they are: the root of a negative sum is NaN.

    """
    return _lp_pool(2, input, norm_type, kernel_size, stride, ceil_mode)


def lp_pool3d(
    input: Tensor, norm_type: float, kernel_size: Ints, stride: Ints | None = None, ceil_mode: bool = False
) -> Tensor:
    """Norm of each window over three extents; see `lp_pool2d`."""
    return _lp_pool(3, input, norm_type, kernel_size, stride, ceil_mode)
