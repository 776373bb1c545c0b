"""When each buffer is accessed next: what Belady's policy and every reuse statistic start from."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

NEVER = (1 << 31) - 1
"""Stands for the index of an access that never comes."""


def next_uses(sequence: ArrayLike) -> NDArray[np.int32]:
    """Return per position the position of the same buffer's next access, or ``NEVER``; shape (n,)."""
    ids = np.ascontiguousarray(sequence, dtype=np.int32)
    result = np.full(len(ids), NEVER, dtype=np.int32)
    order = np.argsort(ids, kind="stable")
    same = ids[order[1:]] == ids[order[:-1]]
    result[order[:-1][same]] = order[1:][same]
    return result
