"""When each buffer is accessed next: what Belady's policy and every reuse statistic start from."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

NEVER = (1 << 31) - 1
"""Stands for the index of an access that never comes."""

_CHUNK = 1 << 16
"""Accesses looked at together: what is sorted stays in the processor's cache, and takes little memory."""


def next_uses(sequence: ArrayLike) -> NDArray[np.int32]:
    """Return per position the position of the same buffer's next access, or ``NEVER``; shape (n,).

    Parameters
    ----------
    sequence
        Dense ids of buffers in the order of their accesses, shape (n,).
    """
    ids = np.ascontiguousarray(sequence, dtype=np.int32)
    result = np.empty(len(ids), dtype=np.int32)
    if not len(ids):
        return result
    if ids.min() < 0 or ids.max() > 2 * len(ids) + _CHUNK:
        ids = np.unique(ids, return_inverse=True)[1].astype(np.int32)
    upcoming = np.full(int(ids.max()) + 1, NEVER, dtype=np.int32)
    for start in reversed(range(0, len(ids), _CHUNK)):
        part = ids[start : start + _CHUNK]
        order = np.argsort(part, kind="stable").astype(np.int32)
        ordered = part[order]
        last = np.append(ordered[1:] != ordered[:-1], True)
        following = np.append(order[1:] + np.int32(start), np.int32(0))
        result[start + order] = np.where(last, upcoming[ordered], following)
        first = np.append(True, last[:-1])
        upcoming[ordered[first]] = order[first] + np.int32(start)
    return result
