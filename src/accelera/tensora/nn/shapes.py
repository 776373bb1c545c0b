"""Modules that rearrange, pad, resize or compare: padding, flattening, pixels, distances."""

from __future__ import annotations

import math
from typing import Any

from accelera.errors import ShapeError
from accelera.tensora import functional, manipulation
from accelera.tensora.core import Tensor, native
from accelera.tensora.nn.module import Module


class Flatten(Module):
    """Axes from `start_dim` to `end_dim` as one."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, input: Tensor) -> Tensor:
        """Return the input in its new shape."""
        shape = tuple(input.shape)
        start, end = self.start_dim % max(len(shape), 1), self.end_dim % max(len(shape), 1)
        return native.reshape(input, (*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :]))

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """One axis as several."""

    def __init__(self, dim: int, unflattened_size: Any) -> None:
        super().__init__()
        self.dim, self.unflattened_size = dim, unflattened_size

    def forward(self, input: Tensor) -> Tensor:
        """Return the input in its new shape."""
        return manipulation.unflatten(input, self.dim, tuple(self.unflattened_size))

    def extra_repr(self) -> str:
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"


class Unfold(Module):
    """Windows of an image as columns."""

    def __init__(self, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> None:
        super().__init__()
        self.kernel_size, self.dilation, self.padding, self.stride = kernel_size, dilation, padding, stride

    def forward(self, input: Tensor) -> Tensor:
        """Map (N, C, H, W) to (N, C * window, windows)."""
        return functional.unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, dilation={self.dilation}, padding={self.padding}, "
            f"stride={self.stride}"
        )


class Fold(Module):
    """Columns added up as windows of an image."""

    def __init__(
        self, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
    ) -> None:
        super().__init__()
        self.output_size, self.kernel_size = output_size, kernel_size
        self.dilation, self.padding, self.stride = dilation, padding, stride

    def forward(self, input: Tensor) -> Tensor:
        """Map (N, C * window, windows) to (N, C, H, W)."""
        return functional.fold(
            input, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride
        )

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}, kernel_size={self.kernel_size}, stride={self.stride}"


class PixelShuffle(Module):
    """Channels as pixels of a larger image (W. Shi et al. 2016)."""

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor

    def forward(self, input: Tensor) -> Tensor:
        """Map (..., C * r * r, H, W) to (..., C, H * r, W * r)."""
        return functional.pixel_shuffle(input, self.upscale_factor)

    def extra_repr(self) -> str:
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """Inverse of `PixelShuffle`."""

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = downscale_factor

    def forward(self, input: Tensor) -> Tensor:
        """Map (..., C, H * r, W * r) to (..., C * r * r, H, W)."""
        return functional.pixel_unshuffle(input, self.downscale_factor)

    def extra_repr(self) -> str:
        return f"downscale_factor={self.downscale_factor}"


class ChannelShuffle(Module):
    """Channels of groups in turn (X. Zhang et al. 2018)."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, input: Tensor) -> Tensor:
        """Map (N, C, ...) to the same shape.

        Raises
        ------
        ValueError
            If the groups do not divide the channels.

        """
        batch, channels, *rest = input.shape
        if channels % self.groups:
            raise ShapeError(f"[ChannelShuffle] {channels} channels in {self.groups} groups; give a divisor")
        parts = native.reshape(input, (batch, self.groups, channels // self.groups, *rest))
        return native.reshape(manipulation.swapaxes(parts, 1, 2), (batch, channels, *rest))

    def extra_repr(self) -> str:
        return f"groups={self.groups}"


class Upsample(Module):
    """Image resized by interpolation."""

    def __init__(
        self,
        size: Any = None,
        scale_factor: Any = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        super().__init__()
        self.size, self.scale_factor, self.mode = size, scale_factor, mode
        self.align_corners, self.recompute_scale_factor = align_corners, recompute_scale_factor

    def forward(self, input: Tensor) -> Tensor:
        """Resize the last axes of (N, C, ...)."""
        return functional.interpolate(
            input, self.size, self.scale_factor, self.mode, self.align_corners, self.recompute_scale_factor
        )

    def extra_repr(self) -> str:
        size = f"scale_factor={self.scale_factor}" if self.size is None else f"size={self.size}"
        return f"{size}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """Image resized by its nearest pixels."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, "nearest")


class UpsamplingBilinear2d(Upsample):
    """Image resized by linear interpolation along both axes, with its corners kept."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, "bilinear", align_corners=True)


class CosineSimilarity(Module):
    """Cosine of the angle between vectors along an axis."""

    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        super().__init__()
        self.dim, self.eps = dim, eps

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Compare vectors, pair by pair."""
        return functional.cosine_similarity(x1, x2, self.dim, self.eps)


class PairwiseDistance(Module):
    """Norm of the difference of vectors along the last axis."""

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        super().__init__()
        self.norm, self.eps, self.keepdim = p, eps, keepdim

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Compare vectors, pair by pair."""
        return functional.pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)


class _Pad(Module):
    """Elements added at both ends of the last axes.

    Parameters
    ----------
    padding
        One number, or two for each axis, the last axis first.

    """

    axes: int
    mode: str

    def __init__(self, padding: Any) -> None:
        super().__init__()
        self.padding = (padding,) * (2 * self.axes) if isinstance(padding, int) else tuple(padding)

    def forward(self, input: Tensor) -> Tensor:
        """Pad (N, C, ...), or (C, ...) without a batch."""
        return functional.pad(input, self.padding, self.mode)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _ConstantPad(_Pad):
    """A number added at both ends of the last axes.

    Parameters
    ----------
    padding
        One number, or two for each axis, the last axis first.
    value
        Number that is added.

    """

    mode = "constant"

    def __init__(self, padding: Any, value: float) -> None:
        super().__init__(padding)
        self.value = value

    def forward(self, input: Tensor) -> Tensor:
        """Pad (N, C, ...), or (C, ...) without a batch."""
        return functional.pad(input, self.padding, "constant", self.value)

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


def _pad_class(kind: str, axes: int) -> type[Module]:
    """Class of one way of padding so many axes."""
    base: type[_Pad] = _ConstantPad if kind in ("Constant", "Zero") else _Pad
    members: dict[str, Any] = {"axes": axes, "__doc__": base.__doc__, "__module__": __name__}
    if base is _Pad:
        members["mode"] = {"Reflection": "reflect", "Replication": "replicate", "Circular": "circular"}[kind]
    if kind == "Zero":
        members["__init__"] = lambda self, padding: _ConstantPad.__init__(self, padding, 0.0)
        members["extra_repr"] = _Pad.extra_repr
    return type(f"{kind}Pad{axes}d", (base,), members)


ConstantPad1d, ConstantPad2d, ConstantPad3d = (_pad_class("Constant", n) for n in (1, 2, 3))
ZeroPad1d, ZeroPad2d, ZeroPad3d = (_pad_class("Zero", n) for n in (1, 2, 3))
ReflectionPad1d, ReflectionPad2d, ReflectionPad3d = (_pad_class("Reflection", n) for n in (1, 2, 3))
ReplicationPad1d, ReplicationPad2d, ReplicationPad3d = (_pad_class("Replication", n) for n in (1, 2, 3))
CircularPad1d, CircularPad2d, CircularPad3d = (_pad_class("Circular", n) for n in (1, 2, 3))
