"""True reuse distances: how many distinct buffers were accessed since a buffer's last access."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from accelera.trace import NEVER, next_uses


def stack_distances(sequence: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return per access the number of distinct other ids since the last access of its own; shape (n,).

    -1 for first accesses. At access t, whose last one was at p, those are the ids last accessed between
    the two: all seen before t, less those last accessed before p, less its own.
    """
    upcoming = next_uses(sequence)
    count = len(sequence)
    distances = np.full(count, -1, dtype=np.int64)
    again = np.flatnonzero(upcoming != NEVER)
    first = np.ones(count, dtype=bool)
    first[upcoming[again]] = False
    seen = np.cumsum(first) - first
    untouched = larger_before(upcoming)
    distances[upcoming[again]] = seen[upcoming[again]] - untouched[again] - 1
    return distances


def larger_before(values: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return per position how many earlier values are larger, equal ones counted as smaller; shape (n,).

    Ranks are sorted bit by bit from the highest. Of two ranks with equal bits above, the larger has a one
    where the other has a zero: so at each bit a zero counts the ones that stand before it in its group.
    """
    count = len(values)
    order = np.arange(count)
    ranks = np.empty(count, dtype=np.int64)
    ranks[np.argsort(values, kind="stable")] = order
    larger = np.zeros(count, dtype=np.int64)
    for bit in reversed(range(max(count - 1, 0).bit_length())):
        rank = ranks[order]
        start = rank >> (bit + 1) << (bit + 1)
        one = (rank >> bit) & 1
        running = np.concatenate(([0], np.cumsum(one)))
        ones = running[:-1] - running[start]
        larger[order] += np.where(one, 0, ones)
        zeros = np.arange(count) - start - ones
        order_next = np.empty_like(order)
        order_next[start + np.where(one, (1 << bit) + ones, zeros)] = order
        order = order_next
    return larger
