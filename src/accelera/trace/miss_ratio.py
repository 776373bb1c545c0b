"""Miss-ratio curves of an LRU cache: exact, or from a sample of the buffers (SHARDS; Waldspurger 2015)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accelera import _native
from accelera.errors import ArgumentError
from accelera.trace.reuse import StackDistances, stack_distances
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


_GROUPS = 8
"""Into so many the sample is parted to see how much chance there is in it."""
_GRID = 64
"""Capacities at which the parts are compared, evenly up to the footprint."""


def sampled_miss_ratio_curve(
    trace: Trace, *, rate: float | None = None, buffers: int | None = None, seed: int = 0
) -> MissRatioCurve:
    """Estimate the curve from a share of the buffers.

    Returns the curve with its ``sampled_fraction`` and its ``standard_error``: the sample is parted into
    eight, and how far their curves lie apart tells what the whole is likely off by.

    Parameters
    ----------
    trace
        The accesses, in order.
    rate
        Share of the buffers to look at, over 0 and up to 1.
    buffers
        How many to look at instead; 8192 when neither is given.
    seed
        Which ones: another seed, another sample.
    """
    share = _checked_share(trace, rate, buffers)
    ranks = np.argsort(np.argsort(_hashes(trace.buffer_count, seed)))
    chosen = ranks < max(1, round(share * trace.buffer_count))
    share = float(np.count_nonzero(chosen)) / max(trace.buffer_count, 1)
    if share >= 1 or not len(trace):
        return miss_ratio_curve(trace)
    kept, sample = _only(trace, chosen)
    accesses, accessed_bytes = trace.access_count, _accessed_bytes(trace)
    grid = np.linspace(0, trace.footprint_bytes, _GRID + 1)[1:]
    parts = [
        _estimate(_only(sample, ranks[kept] % _GROUPS == part)[1], share / _GROUPS, accesses, accessed_bytes)
        for part in range(_GROUPS)
    ]
    ratios = [part.miss_ratio(grid) for part in parts]
    spread = np.std(ratios, axis=0, ddof=1) / np.sqrt(_GROUPS) * np.sqrt(1 - share)
    curve = _estimate(sample, share, accesses, accessed_bytes)
    return replace(curve, sampled_fraction=share, standard_error=float(spread.mean()))


def _checked_share(trace: Trace, rate: float | None, buffers: int | None) -> float:
    if rate is not None and buffers is not None:
        raise ArgumentError("[shards] rate and buffers were both given; one of them says how much to look at")
    if rate is None:
        wanted = 8192 if buffers is None else buffers
        rate = min(1.0, wanted / max(trace.buffer_count, 1))
    if not 0 < rate <= 1:
        raise ArgumentError(
            f"[shards] a share of {rate:g} of the buffers was asked for; it must be over 0 and up to 1"
        )
    return rate


def _only(trace: Trace, chosen: NDArray[np.bool_]) -> tuple[NDArray[np.int64], Trace]:
    """Return the ``chosen`` buffers in the order of first use, and the trace of their events alone."""
    rows = chosen[trace.buffer]
    buffers = trace.buffer[rows]
    part = Trace.from_arrays(buffers, trace.size_bytes[buffers], kinds=trace.kind[rows])
    return np.array(part.names, np.int64), part


def _accessed_bytes(trace: Trace) -> int:
    return int(trace.size_bytes[trace.accessed].sum())


def _estimate(sample: Trace, share: float, accesses: int, accessed_bytes: int) -> MissRatioCurve:
    """Return the curve of a whole of which ``sample`` is expected to be a ``share``.

    What the sample misses, times 1 / share, is missed; all else hits. That mends a sample that has, by
    chance, more or fewer uses than its share (the paper's SHARDS-adj).
    """
    own = sample.size_bytes[sample.accessed]
    distances = stack_distances(sample)
    needed = distances.needed_bytes
    scaled = np.where(needed < 0, needed, own + np.rint((needed - own) / share).astype(np.int64))
    seen = miss_ratio_curve(sample, replace(distances, needed_bytes=scaled))
    return MissRatioCurve(
        seen.capacity_bytes,
        np.maximum(accesses - (seen.accesses - seen.hits) / share, 0),
        np.maximum(accessed_bytes - (seen.accessed_bytes - seen.hit_bytes) / share, 0),
        accesses,
        accessed_bytes,
    )


def _hashes(count: int, seed: int) -> NDArray[np.uint64]:
    """Return a well-mixed number per id (the finaliser of splitmix64)."""
    with np.errstate(over="ignore"):
        mixed = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    found: NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(31))
    return found
