"""Miss-ratio curves: what an LRU cache of any size would miss, all sizes at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accelera import _native
from accelera.trace.stack_distance import StackDistances, stack_distances
from accelera.trace.trace import Trace


@dataclass(frozen=True, eq=False)
class MissRatioCurve:
    """Misses of LRU as a function of the capacity.

    Equal to ``simulate_cache(trace, policy="lru")`` at every capacity when all buffers have one size, and at
    every capacity that holds the largest buffer when they have not. Below that the real cache lets large
    buffers pass by and may miss less.
    """

    capacity_bytes: NDArray[np.int64]
    """The capacities at which something changes, ascending; shape (points,)."""
    hits: NDArray[Any]
    """Accesses that hit with at least that capacity, shape (points,); whole numbers unless sampled."""
    hit_bytes: NDArray[Any]
    """Their bytes; shape (points,)."""
    accesses: int
    """All accesses."""
    accessed_bytes: int
    """Their bytes."""
    sampled_fraction: float = 1.0
    """Share of the buffers that was looked at; 1 for an exact curve."""
    standard_error: float = 0.0
    """Of a sampled curve: what its miss ratio is likely off by, on average over capacities from a 64th of the
    footprint to all of it. At smaller ones single buffers count, and chance has more to say."""

    def misses(self, capacity_bytes: ArrayLike) -> NDArray[Any]:
        """Return the misses in a cache of ``capacity_bytes`` (a number, or any shape of them)."""
        return self.accesses - self._at(self.hits, capacity_bytes)

    def miss_bytes(self, capacity_bytes: ArrayLike) -> NDArray[Any]:
        """Return the bytes of the misses."""
        return self.accessed_bytes - self._at(self.hit_bytes, capacity_bytes)

    def miss_ratio(self, capacity_bytes: ArrayLike) -> NDArray[np.float64]:
        """Return misses over accesses; 0 for an empty trace."""
        return self.misses(capacity_bytes) / max(self.accesses, 1)

    def byte_miss_ratio(self, capacity_bytes: ArrayLike) -> NDArray[np.float64]:
        """Return bytes of misses over bytes of accesses; 0 for an empty trace."""
        return self.miss_bytes(capacity_bytes) / max(self.accessed_bytes, 1)

    def _at(self, values: NDArray[Any], capacity_bytes: ArrayLike) -> NDArray[Any]:
        index = np.searchsorted(self.capacity_bytes, np.asarray(capacity_bytes), side="right")
        found: NDArray[Any] = np.concatenate([np.zeros(1, values.dtype), values])[index]
        return found


def miss_ratio_curve(trace: Trace, distances: StackDistances | None = None) -> MissRatioCurve:
    """Return the exact curve.

    Parameters
    ----------
    trace
        The accesses, in order.
    distances
        Of the same trace, where they have been measured already.
    """
    needed = (distances or stack_distances(trace)).needed_bytes
    accessed, sizes = trace.accessed, trace.size_bytes
    return MissRatioCurve(
        *_native.miss_curve(accessed, needed, sizes), len(accessed), int(sizes[accessed].sum())
    )
