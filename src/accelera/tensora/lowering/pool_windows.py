"""Windows of pooling along each axis of an image, as element indices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from accelera.tensora.lowering.program import StepParams


@dataclass(frozen=True)
class AxisWindows:
    """Windows along one axis of an image."""

    extent: int
    places: np.ndarray
    """Index in the image, of shape (window elements, windows); in the padding it is < 0 or >= `extent`."""
    inside: np.ndarray
    """Mask of the same shape: True for an element of the window that lies in the image."""
    counted: np.ndarray
    """Number of elements of each window, padding included; of shape (windows,)."""

    @property
    def low(self) -> int:
        """Elements of padding in front."""
        return max(0, -int(self.places.min(initial=0)))

    @property
    def high(self) -> int:
        """Elements of padding behind; one at least where windows have too few elements."""
        return max(0, int(self.places.max(initial=0)) + 1 - self.extent)


def axis_windows(params: StepParams) -> list[AxisWindows]:
    """Windows of each axis; a: kernel, b: strides, c: padding, dilations, results and image; mode: shares."""
    n = len(params.a)
    return [(_adaptive if params.mode else _strided)(params, i, n) for i in range(n)]


def _strided(params: StepParams, i: int, n: int) -> AxisWindows:
    padding, dilation, outs, extent = (params.c[k * n + i] for k in range(4))
    first = np.arange(outs) * params.b[i] - padding
    places = first + dilation * np.arange(params.a[i])[:, None]
    last = first + dilation * (params.a[i] - 1) + 1
    counted = np.minimum(last, extent + padding) - first
    return AxisWindows(extent, places, (places >= 0) & (places < extent), counted)


def _adaptive(params: StepParams, i: int, n: int) -> AxisWindows:
    outs, extent = params.c[2 * n + i], params.c[3 * n + i]
    first = np.arange(outs) * extent // outs
    last = ((np.arange(outs) + 1) * extent + outs - 1) // outs
    most = int((last - first).max(initial=1))
    places = first + np.arange(most)[:, None]
    inside = places < last
    return AxisWindows(extent, np.where(inside, places, extent), inside, last - first)
