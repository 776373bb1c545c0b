"""Reuse of buffers: next uses, stack distances (how much else is used in between), locality."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accelera import _native

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


FIRST = -1
"""Stands for the distance of a first use."""


@dataclass(frozen=True, eq=False)
class StackDistances:
    """Per access, what lies between it and the last use of the same buffer; all of shape (accesses,)."""

    buffers: NDArray[np.int32]
    """Distinct other buffers used in between; ``FIRST`` for a first use, also after a free."""
    bytes: NDArray[np.int64]
    """Their bytes; ``FIRST`` likewise."""
    needed_bytes: NDArray[np.int64]
    """The least capacity of an LRU cache in which this access hits; ``FIRST`` where none is enough."""

    @cached_property
    def reuses(self) -> NDArray[np.int32]:
        """The distances of the accesses that are no first uses, in order."""
        found: NDArray[np.int32] = self.buffers[self.buffers != FIRST]
        return found

    @cached_property
    def histogram(self) -> NDArray[np.int64]:
        """How many reuses have each distance: entry ``d`` counts those with ``d`` others in between."""
        found: NDArray[np.int64] = np.bincount(self.reuses)
        return found


def stack_distances(trace: Any) -> StackDistances:
    """Measure the stack distance of every access of a ``Trace``, in one pass.

    Buffers that are freed or evicted on request make room: for traces with such events ``needed_bytes`` is
    less than the bytes in between and the buffer's own together.

    Parameters
    ----------
    trace
        The accesses, in order.
    """
    count = trace.access_count
    found = StackDistances(np.empty(count, np.int32), np.empty(count, np.int64), np.empty(count, np.int64))
    kinds = None if len(trace) == count else trace.kind
    _native.stack_distances(
        trace.buffer, kinds, trace.size_bytes, found.buffers, found.bytes, found.needed_bytes
    )
    return found


NEAR = 5
"""A reuse with fewer distinct buffers in between is near."""


def reuse_entropy(distances: StackDistances) -> float:
    """Return the Shannon entropy of the reuse distances in bits; 0 when all are alike or there are none.

    Parameters
    ----------
    distances
        From ``stack_distances``.
    """
    counts = distances.histogram[distances.histogram > 0]
    shares = counts / max(counts.sum(), 1)
    return float(-(shares * np.log2(shares)).sum()) + 0.0


def temporal_locality(distances: StackDistances, *, near: int = NEAR) -> float:
    """Return the share of reuses with fewer than ``near`` distinct buffers in between; 0 without reuses.

    Parameters
    ----------
    distances
        From ``stack_distances``.
    near
        How many other buffers in between are still near.
    """
    return float(distances.histogram[:near].sum() / max(len(distances.reuses), 1))
