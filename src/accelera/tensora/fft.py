"""Fourier transforms: the array API's extension `fft`, on pocketfft as SciPy brings it.

Every transform has gradients of any order. float32 becomes complex64 and float64 complex128, and back;
integers are taken as the default floating-point type, float16 and bfloat16 as float32.

The norms: "backward" divides inverse transforms by the number of elements, "forward" the others, "ortho" both
by its root.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from accelera.errors import ArgumentError, DTypeError, IndexingError, ShapeError
from accelera.tensora.autograd import Context, Function
from accelera.tensora.core import DType, Tensor, native, require_tensors
from accelera.tensora.inspection import check_device, placed
from accelera.tensora.manipulation import roll
from accelera.tensora.typing import Device, DTypeLike

__all__ = [
    "fft",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "hfftn",
    "ifft",
    "ifftn",
    "ifftshift",
    "ihfft",
    "ihfftn",
    "irfft",
    "irfftn",
    "rfft",
    "rfftfreq",
    "rfftn",
]

_OPPOSITE = {"backward": "forward", "forward": "backward", "ortho": "ortho"}
_LARGE = 1 << 16


@functools.cache
def _pocketfft() -> Any:
    import scipy.fft  # it takes longer to import than the rest of the library

    return scipy.fft


def _run(name: str, x: Tensor, **options: Any) -> Tensor:
    """Run a SciPy transform on a tensor; return the result on the same device."""
    workers = native.thread_count() if x.size >= _LARGE else 1
    made = getattr(_pocketfft(), name)(np.asarray(x.detach().cpu()), workers=workers, **options)
    return placed(native.from_dlpack(np.ascontiguousarray(made)), x.device)


# --- the four transforms that are run; their sizes are those of the input ---------------------------------


class _Complex(Function):
    """`fftn` or `ifftn`. The adjoint is the inverse transform, with the same scale factor."""

    @staticmethod
    def forward(ctx: Context, *inputs: Any) -> Tensor:
        """Arguments: tensor, inverse, axes, norm."""
        x, inverse, axes, norm = inputs
        ctx.options = (not inverse, axes, _OPPOSITE[norm])  # type: ignore[attr-defined]
        return _run("ifftn" if inverse else "fftn", x, axes=axes, norm=norm)

    @staticmethod
    def backward(ctx: Context, *grads: Any) -> Any:
        """Return the gradient of the tensor, and None for the options."""
        return _Complex.apply(grads[0], *ctx.options), None, None, None  # type: ignore[attr-defined]


def _half_weights(n: int, inner: float, axis: int, x: Tensor) -> Tensor:
    """Return the weights of a half spectrum of `n`: `inner`, but 1 at frequency 0 and at n / 2."""
    weights = [1.0 if i == 0 or 2 * i == n else inner for i in range(n // 2 + 1)]
    shape = [1] * x.ndim
    shape[axis] = len(weights)
    return native.reshape(native.asarray(weights, x.dtype), tuple(shape))


class _RealToHalf(Function):
    """`rfft` of an axis. The adjoint is `irfft` of the gradient with inner elements halved."""

    @staticmethod
    def forward(ctx: Context, *inputs: Any) -> Tensor:
        """Arguments: tensor, axis, norm."""
        x, axis, norm = inputs
        ctx.options = (x.shape[axis], axis, _OPPOSITE[norm])  # type: ignore[attr-defined]
        return _run("rfft", x, axis=axis, norm=norm)

    @staticmethod
    def backward(ctx: Context, *grads: Any) -> Any:
        """Return the gradient of the tensor, and None for the options."""
        n, axis, norm = ctx.options  # type: ignore[attr-defined]
        weighted = native.multiply(grads[0], _half_weights(n, 0.5, axis, grads[0]))
        return _HalfToReal.apply(weighted, n, axis, norm), None, None


class _HalfToReal(Function):
    """`irfft` of an axis, to `n` elements. The adjoint is `rfft` with inner elements doubled."""

    @staticmethod
    def forward(ctx: Context, *inputs: Any) -> Tensor:
        """Arguments: tensor, n, axis, norm."""
        x, n, axis, norm = inputs
        ctx.options = (n, axis, _OPPOSITE[norm])  # type: ignore[attr-defined]
        return _run("irfft", x, n=n, axis=axis, norm=norm)

    @staticmethod
    def backward(ctx: Context, *grads: Any) -> Any:
        """Return the gradient of the tensor, and None for the options."""
        n, axis, norm = ctx.options  # type: ignore[attr-defined]
        spectrum = _RealToHalf.apply(grads[0], axis, norm)
        return native.multiply(spectrum, _half_weights(n, 2.0, axis, spectrum)), None, None, None


# --- arguments --------------------------------------------------------------------------------------------


def _check_norm(name: str, norm: str) -> None:
    if norm not in _OPPOSITE:
        raise ArgumentError(f"[{name}] norm={norm!r}; give 'backward', 'ortho' or 'forward'")


def _axis(name: str, x: Any, axis: int) -> int:
    """Axis counted from the front."""
    require_tensors(x)
    if not -x.ndim <= axis < x.ndim:
        raise IndexingError(f"[{name}] axis {axis} of a tensor with {x.ndim} dimensions")
    return axis % int(x.ndim)


def _inexact(x: Tensor) -> Tensor:
    """The tensor in a type that pocketfft computes in."""
    if x.dtype.name in ("float32", "float64", "complex64", "complex128"):
        return x
    return native.cast(x, native.dtype.float32 if "float" in x.dtype.name else native.default_float())


def _as_complex(x: Tensor) -> Tensor:
    x = _inexact(x)
    if x.dtype.name.startswith("complex"):
        return x
    return native.cast(x, native.dtype.complex64 if x.dtype.name == "float32" else native.dtype.complex128)


def _as_real(name: str, x: Tensor) -> Tensor:
    if x.dtype.name.startswith("complex"):
        raise DTypeError(f"[{name}] a tensor of {x.dtype.name}; a real one is needed, or use fft()")
    return _inexact(x)


def _part(x: Tensor, axis: int, start: int | None, stop: int | None) -> Tensor:
    key: list[Any] = [slice(None)] * x.ndim
    key[axis] = slice(start, stop)
    return x[tuple(key)]


def _resized(name: str, x: Tensor, axis: int, n: int | None) -> Tensor:
    """The tensor cut to `n` elements on an axis, or with zeros after its own."""
    own = x.shape[axis]
    n = own if n is None else n
    if n < 1:
        raise ShapeError(
            f"[{name}] a transform of {n} elements on axis {axis} of shape {x.shape}; give at least 1"
        )
    if n <= own:
        return x if n == own else _part(x, axis, 0, n)
    shape = list(x.shape)
    shape[axis] = n - own
    return native.concat([x, native.full(tuple(shape), 0, x.dtype)], axis)


def _sizes(
    name: str, x: Any, s: Sequence[int] | None, axes: Sequence[int] | None
) -> tuple[list[int | None], list[int]]:
    """Extent (None: its own) and axis of each dimension of a transform."""
    if axes is None:
        axes = range(x.ndim) if s is None else range(x.ndim - len(s), x.ndim)
    places = [_axis(name, x, axis) for axis in axes]
    if len(set(places)) != len(places):
        raise ShapeError(f"[{name}] an axis stands twice in {tuple(axes)}")
    if s is not None and len(s) != len(places):
        raise ShapeError(f"[{name}] {len(s)} extents in s for {len(places)} axes")
    return [None] * len(places) if s is None else [None if n == -1 else n for n in s], places


# --- complex transforms -----------------------------------------------------------------------------------


def _complex_transform(
    name: str, x: Any, s: Sequence[int] | None, axes: Sequence[int] | None, norm: str
) -> Tensor:
    _check_norm(name, norm)
    sizes, places = _sizes(name, x, s, axes)
    x = _as_complex(x)
    for n, axis in zip(sizes, places, strict=True):
        x = _resized(name, x, axis, n)
    if not places or x.size == 0:
        return native.copy(x)
    return _Complex.apply(x, name.startswith("i"), tuple(places), norm)


def fft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """Discrete Fourier transform of an axis.

    Parameters
    ----------
    x
        Real or complex tensor; the result is complex.
    n
        Elements that are transformed: more are cut off, fewer are followed by zeros. All by default.
    axis
        Where they lie.
    norm
        "backward", "ortho" or "forward", as the module says.

    """
    return _complex_transform("fft", x, None if n is None else (n,), (axis,), norm)


def ifft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """Inverse of `fft`."""
    return _complex_transform("ifft", x, None if n is None else (n,), (axis,), norm)


def fftn(
    x: Tensor, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str = "backward"
) -> Tensor:
    """Discrete Fourier transform of several axes.

    Parameters
    ----------
    x
        Real or complex tensor; the result is complex.
    s
        Elements that are transformed on each axis, as `n` of `fft`.
    axes
        All by default, or the last ``len(s)``.
    norm
        "backward", "ortho" or "forward", as the module says.

    """
    return _complex_transform("fftn", x, s, axes, norm)


def ifftn(
    x: Tensor, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str = "backward"
) -> Tensor:
    """Inverse of `fftn`."""
    return _complex_transform("ifftn", x, s, axes, norm)


# --- real transforms --------------------------------------------------------------------------------------


def rfft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """First ``n // 2 + 1`` elements of the `fft` of a real tensor; the others are their mirror images."""
    _check_norm("rfft", norm)
    place = _axis("rfft", x, axis)
    real = _resized("rfft", _as_real("rfft", x), place, n)
    if real.size == 0:
        return _part(native.copy(_as_complex(real)), place, 0, real.shape[place] // 2 + 1)
    return _RealToHalf.apply(real, place, norm)


def irfft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """Inverse of `rfft`: `n` real elements, ``2 * (x.shape[axis] - 1)`` by default."""
    _check_norm("irfft", norm)
    place = _axis("irfft", x, axis)
    n = 2 * (x.shape[place] - 1) if n is None else n
    if n < 1:
        raise ShapeError(f"[irfft] {n} elements from axis {axis} of shape {x.shape}; give n of at least 1")
    half = _resized("irfft", _as_complex(x), place, n // 2 + 1)
    if half.size == 0:
        return native.full((*x.shape[:place], n, *x.shape[place + 1 :]), 0, native.real(half).dtype)
    return _HalfToReal.apply(half, n, place, norm)


def rfftn(
    x: Tensor, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str = "backward"
) -> Tensor:
    """`fftn` of a real tensor, of whose last axis the result has the first half, as `rfft`."""
    _check_norm("rfftn", norm)
    sizes, places = _sizes("rfftn", x, s, axes)
    if not places:
        raise ShapeError("[rfftn] no axes; give one at least")
    half = rfft(x, n=sizes[-1], axis=places[-1], norm=norm)
    rest = [half.shape[axis] if n is None else n for n, axis in zip(sizes[:-1], places[:-1], strict=True)]
    return _complex_transform("fftn", half, rest, places[:-1], norm) if rest else half


def irfftn(
    x: Tensor, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str = "backward"
) -> Tensor:
    """Inverse of `rfftn`; without `s` the last axis has ``2 * (extent - 1)`` elements."""
    _check_norm("irfftn", norm)
    sizes, places = _sizes("irfftn", x, s, axes)
    if not places:
        raise ShapeError("[irfftn] no axes; give one at least")
    rest = [x.shape[axis] if n is None else n for n, axis in zip(sizes[:-1], places[:-1], strict=True)]
    half = _complex_transform("ifftn", x, rest, places[:-1], norm) if rest else x
    return irfft(half, n=sizes[-1], axis=places[-1], norm=norm)


def hfft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """`fft` of a signal that is its own conjugated mirror image, given by its half `x`: real.

    `n` elements, ``2 * (x.shape[axis] - 1)`` by default.
    """
    _check_norm("hfft", norm)
    return irfft(native.conj(_as_complex(x)), n=n, axis=axis, norm=_OPPOSITE[norm])


def ihfft(x: Tensor, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """Inverse of `hfft`: ``n // 2 + 1`` elements, made of a real tensor."""
    _check_norm("ihfft", norm)
    return native.conj(rfft(x, n=n, axis=axis, norm=_OPPOSITE[norm]))


def hfftn(
    x: Tensor, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str = "backward"
) -> Tensor:
    """`fftn` of a signal that is its own conjugated mirror image; the last axis as in `hfft`."""
    _check_norm("hfftn", norm)
    return irfftn(native.conj(_as_complex(x)), s=s, axes=axes, norm=_OPPOSITE[norm])


def ihfftn(
    x: Tensor, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str = "backward"
) -> Tensor:
    """Inverse of `hfftn`, made of a real tensor."""
    _check_norm("ihfftn", norm)
    return native.conj(rfftn(x, s=s, axes=axes, norm=_OPPOSITE[norm]))


# --- frequencies ------------------------------------------------------------------------------------------


def _frequencies(name: str, numbers: list[int], n: int, d: float, dtype: DTypeLike | None) -> Tensor:
    real_dtype: DType = native.default_float() if dtype is None else native.to_dtype(dtype)
    if "float" not in real_dtype.name:
        raise DTypeError(f"[{name}] frequencies of type {real_dtype.name}; give a real floating-point type")
    return native.asarray([number / (n * d) for number in numbers], real_dtype)


def _check_frequencies(name: str, n: int, device: Device | None) -> None:
    if n < 1:
        raise ArgumentError(f"[{name}] n={n}; give at least 1")
    check_device(device)


def fftfreq(
    n: int, /, *, d: float = 1.0, dtype: DTypeLike | None = None, device: Device | None = None
) -> Tensor:
    """Frequencies of the `n` elements of a transform whose samples are `d` apart: first those from 0 up."""
    _check_frequencies("fftfreq", n, device)
    numbers = [*range((n + 1) // 2), *range(-(n // 2), 0)]
    return _frequencies("fftfreq", numbers, n, d, dtype)


def rfftfreq(
    n: int, /, *, d: float = 1.0, dtype: DTypeLike | None = None, device: Device | None = None
) -> Tensor:
    """Frequencies of the ``n // 2 + 1`` elements of `rfft`."""
    _check_frequencies("rfftfreq", n, device)
    return _frequencies("rfftfreq", list(range(n // 2 + 1)), n, d, dtype)


def _shifted(name: str, x: Tensor, axes: int | Sequence[int] | None, inverse: bool) -> Tensor:
    listed = range(x.ndim) if axes is None else (axes,) if isinstance(axes, int) else axes
    places = tuple(_axis(name, x, axis) for axis in listed)
    halves = tuple(x.shape[place] // 2 for place in places)
    return roll(x, tuple(-half for half in halves) if inverse else halves, axis=places)


def fftshift(x: Tensor, /, *, axes: int | Sequence[int] | None = None) -> Tensor:
    """The tensor with the frequency 0 moved to the middle of the axes, all by default."""
    return _shifted("fftshift", x, axes, inverse=False)


def ifftshift(x: Tensor, /, *, axes: int | Sequence[int] | None = None) -> Tensor:
    """Inverse of `fftshift`."""
    return _shifted("ifftshift", x, axes, inverse=True)
