"""How much else is used between two uses of a buffer: what every cache question starts from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accelera import _native

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
