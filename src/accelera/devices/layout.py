"""How a two-dimensional array lies in memory, in the words of BLAS."""

from __future__ import annotations

from typing import Any

import numpy as np

MOST_ELEMENTS = 2**31 - 1
"""BLAS counts rows, columns and leading dimensions in 32-bit integers."""

Array = np.ndarray[Any, np.dtype[Any]]


def column_stride(x: Array) -> int:
    """Return the leading dimension of ``x`` as a column-major matrix; 0 when it is not one.

    >>> x = np.zeros((6, 4), order="F")
    >>> column_stride(x), column_stride(x[1:4, ::2]), column_stride(x.T)
    (6, 12, 0)
    """
    rows: int
    rows, columns = x.shape
    down, along = x.strides
    item = x.itemsize
    if down != item and rows > 1:
        return 0
    if columns <= 1:
        return max(1, rows)
    stride, rest = int(along // item), along % item
    return stride if rest == 0 and max(1, rows) <= stride <= MOST_ELEMENTS else 0


def is_plain(x: Array) -> bool:
    """Return whether BLAS can read the two-dimensional ``x`` as it lies, in one order or the other."""
    return x.flags.aligned and (column_stride(x) > 0 or column_stride(x.T) > 0)
