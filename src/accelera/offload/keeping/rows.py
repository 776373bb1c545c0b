"""How a tensor too big for one block is cut: along its first axis."""

from __future__ import annotations

import math
from collections.abc import Sequence


def row_parts(shape: Sequence[int], itemsize: int, block_bytes: int) -> list[slice]:
    """Return slices of the first axis, each of at most ``block_bytes`` or of one row.

    >>> row_parts((10, 8), 4, 128)
    [slice(0, 4, None), slice(4, 8, None), slice(8, 10, None)]
    """
    rows = shape[0] if len(shape) else 1
    row_bytes = max(1, math.prod(shape[1:]) * itemsize)
    step = max(1, min(rows, block_bytes // row_bytes))
    return [slice(start, min(start + step, rows)) for start in range(0, max(rows, 1), step)]
