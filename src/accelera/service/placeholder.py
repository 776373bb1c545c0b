"""Placeholder of an array on a disk: a shape and an element type to plan with, and no contents."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn, final

from accelera.stores import STAGING_BYTES_PER_THREAD, Layout, Store, parse_dtype


@final
class Placeholder(Store):
    """An array of this shape as a ``.npy`` file would hold it; reading or writing it is an error."""

    tier = "disk"

    def __init__(self, name: str, shape: Sequence[int], dtype: str) -> None:
        self.name = name
        self.shape = tuple(shape)
        self.dtype = parse_dtype(dtype)

    def read(self, *_: Any) -> NoReturn:
        """Raise: there is nothing to read."""
        raise AssertionError("a plan reads nothing")

    def write(self, *_: Any) -> NoReturn:
        """Raise: there is nowhere to write."""
        raise AssertionError("a plan writes nothing")

    @property
    def layout(self) -> Layout:
        """Rows one after the other."""
        sizes = (*self.shape[1:], 1)
        strides = [self.dtype.itemsize * math.prod(sizes[axis:]) for axis in range(self.ndim)]
        return Layout.of_strides(self.shape, strides, self.dtype.itemsize)

    @property
    def scratch_bytes(self) -> int:
        """What a flat file takes of each thread that reads or writes it."""
        return STAGING_BYTES_PER_THREAD
