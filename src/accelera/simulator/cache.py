"""Plain cache: the loop of oracles and miss-ratio curves, without time, tiers or write-back.

For tensors its figures mislead (a created tensor counts as a miss, a dead one as a resident):
``simulate`` is the one to trust for traffic and time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accelera import _native
from accelera.policy import EvictionPolicy, Knowledge, native_knowledge, prepare
from accelera.simulator.presets import capacity_of
from accelera.trace import Trace


@dataclass(frozen=True)
class CacheResult:
    """Figures of a simulated cache; sizes in bytes."""

    hits: int
    misses: int
    miss_bytes: int
    evictions: int
    evicted_bytes: int
    peak_bytes: int
    """Most bytes in the cache at any time."""

    @property
    def miss_ratio(self) -> float:
        """Misses over accesses; 0 for an empty trace."""
        return self.misses / max(self.hits + self.misses, 1)


def simulate_cache(
    trace: Trace,
    *,
    capacity_bytes: int | float | str,
    policy: str | EvictionPolicy | Callable[[Knowledge], EvictionPolicy] = "lru",
    score: NDArray[np.float64] | None = None,
    seed: int = 0,
) -> CacheResult:
    """Run a trace's accesses through a cache of ``capacity_bytes``, or ``"64MiB"``, or ``"50%"`` of its peak.

    Every access is let go at once; reads and writes are alike; what is larger than the cache passes by;
    freed buffers leave without an eviction.

    Parameters
    ----------
    trace
        The accesses, in order.
    capacity_bytes
        Size of the cache: bytes, text, or a share of the trace's peak.
    policy
        A name of ``accelera.policy.POLICIES`` in any case, a fresh ``EvictionPolicy`` of your own, or what
        makes one from its ``Knowledge``, such as a class.
    score
        Per access, for the policies that follow a score: the highest is given up first.
    seed
        Seed of policies that choose at random.

    Raises
    ------
    UnknownNameError
        A name that there is not.
    ValueError
        For a negative capacity or a score that is not a number.
    ShapeError
        For a score of the wrong length.
    """
    capacity = capacity_of(capacity_bytes, trace)
    known = Knowledge(capacity)
    chosen = policy(Knowledge.of(trace, capacity)) if callable(policy) else policy
    if isinstance(policy, str):
        prepared = prepare(policy.lower(), trace, capacity, score=score, seed=seed)
        chosen, known = prepared.native_name, prepared.knowledge
    kinds = None if trace.is_access.all() else trace.kind
    figures = _native.simulate_cache(chosen, native_knowledge(known), trace.buffer, kinds, trace.size_bytes)
    return CacheResult(
        figures.hits,
        figures.misses,
        figures.miss_bytes,
        figures.evictions,
        figures.evicted_bytes,
        figures.peak_bytes,
    )
