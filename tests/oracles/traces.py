"""Traces large enough to tell policies apart, the same for the oracle, the golden numbers and the laws."""

from __future__ import annotations

import numpy as np

from accelera.trace import Trace

ACCESSES = 60_000
IDS = 12_000
FRACTIONS = (0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.6, 0.8)
"""Capacities as parts of the footprint."""

LARGEST = 64
"""Several fit into a hundredth of every capacity: libCacheSim's LIRS refuses what does not, and with only
one or two places there it counts residents that it has evicted."""


def zipf(sizes: str) -> Trace:
    """Return requests by Zipf's law with exponent 1, drawn from a fixed seed."""
    draw = np.random.default_rng(42)
    weights = 1.0 / np.arange(1, IDS + 1)
    ids = draw.choice(IDS, ACCESSES, p=weights / weights.sum())
    return Trace.from_arrays(ids, _sizes(sizes)[ids])


def scan() -> Trace:
    """Return popular ids with runs of ids that are used once in between."""
    draw = np.random.default_rng(43)
    popular = zipf("one").accessed[: ACCESSES // 2].reshape(20, -1) % 3000
    once = 3000 + np.arange(20 * 500).reshape(20, -1)
    ids = np.concatenate([popular, once], axis=1).ravel()
    return Trace.from_arrays(ids, draw.integers(1, LARGEST, ids.max() + 1)[ids])


def loop() -> Trace:
    """Return three loops of different lengths, each run several times, then all again."""
    parts = [np.tile(np.arange(length), 4) for length in (900, 2700, 4500)]
    ids = np.concatenate(parts * 2)
    return Trace.from_arrays(ids, _sizes("many")[ids])


TRACES = {
    "zipf of one size": lambda: zipf("one"),
    "zipf of many sizes": lambda: zipf("many"),
    "scan": scan,
    "loop": loop,
}


def capacities(trace: Trace) -> list[int]:
    """Return eight capacities in bytes."""
    return [int(trace.footprint_bytes * fraction) for fraction in FRACTIONS]


def _sizes(which: str) -> np.ndarray:
    if which == "one":
        return np.full(IDS, 1, dtype=np.int64)
    return np.random.default_rng(44).integers(1, LARGEST, IDS)
