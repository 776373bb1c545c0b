"""Windows of flat buffers: strided views, expressed as slices and permutations for other libraries."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class BufferWindow:
    """Elements of a buffer that a step reads or writes; strides and offset in elements."""

    buffer: int
    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def is_row(self) -> bool:
        """Whether the elements are contiguous in row-major order."""
        step = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if extent != 1 and stride != step:
                return False
            step *= extent
        return True

    def span(self) -> tuple[int, int]:
        """Return the range of buffer positions that holds all elements: first, and one past the last."""
        if self.size == 0:
            return self.offset, self.offset
        reach = [(extent - 1) * stride for extent, stride in zip(self.shape, self.strides, strict=True)]
        low = self.offset + sum(each for each in reach if each < 0)
        return low, self.offset + sum(each for each in reach if each > 0) + 1

    def places(self) -> np.ndarray:
        """Return the position of each element in the buffer, int64, in the window's shape."""
        result = np.full(self.shape, self.offset, np.int64)
        for axis, (extent, stride) in enumerate(zip(self.shape, self.strides, strict=True)):
            along = np.arange(extent, dtype=np.int64) * stride
            result += along.reshape([-1 if i == axis else 1 for i in range(len(self.shape))])
        return result


@dataclass(frozen=True)
class WindowBox:
    """A window as a box of the buffer in another shape.

    The buffer, without `skipped` elements in front and with `padded` ones behind, is reshaped to `levels`;
    from there the box `starts` to `starts + sizes` is cut, reshaped to `kept`, permuted by `order`, reversed
    along the axes `reversed_axes`, reshaped to `expanded` and broadcast to the window's shape.
    """

    skipped: int
    padded: int
    levels: tuple[int, ...]
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    kept: tuple[int, ...]
    order: tuple[int, ...]
    reversed_axes: tuple[int, ...]
    expanded: tuple[int, ...]

    @property
    def is_cut(self) -> bool:
        """Whether the box is smaller than the buffer in its shape `levels`."""
        return self.sizes != self.levels


def box_of(window: BufferWindow, n: int) -> WindowBox | None:
    """Return a window of a buffer with n elements as a box; None if it is no box, or has no elements.

    Strides of a box divide one another, as after slices, permutations and reshapes; those of overlapping
    windows do not.
    """
    if window.size == 0:
        return None
    axes = [i for i, (d, s) in enumerate(zip(window.shape, window.strides, strict=True)) if d > 1 and s != 0]
    axes.sort(key=lambda i: -abs(window.strides[i]))
    strides = [abs(window.strides[i]) for i in axes]
    extents = [window.shape[i] for i in axes]
    offset = window.span()[0]
    if (strides and strides[-1] > 1) or not strides:
        strides, extents = [*strides, 1], [*extents, 1]
    if any(a % b for a, b in itertools.pairwise(strides)):
        return None
    inner = [a // b for a, b in itertools.pairwise(strides)]
    if any(extent > level for extent, level in zip(extents[1:], inner, strict=True)):
        return None
    starts, rest = [], offset
    for stride in strides:
        starts.append(rest // stride)
        rest %= stride
    levels = [-(-n // strides[0]), *inner]
    skipped = 0
    fits = all(a + b <= c for a, b, c in zip(starts, extents, levels, strict=True))
    if not fits:
        skipped, starts, levels = offset, [0] * len(starts), [-(-(n - offset) // strides[0]), *inner]
    padded = levels[0] * strides[0] - (n - skipped)
    order = sorted(range(len(axes)), key=lambda i: axes[i])
    used = sorted(axes)
    return WindowBox(
        skipped=skipped,
        padded=padded,
        levels=tuple(levels),
        starts=tuple(starts),
        sizes=tuple(extents),
        kept=tuple(extents[: len(axes)]),
        order=tuple(order),
        reversed_axes=tuple(k for k, i in enumerate(used) if window.strides[i] < 0),
        expanded=tuple(window.shape[i] if i in used else 1 for i in range(len(window.shape))),
    )
