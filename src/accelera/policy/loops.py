"""Where a trace's iterations begin."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from accelera.policy.signatures import step_signatures
from accelera.trace import Trace

LIKENESS = 0.8
"""Share of steps that must look like those one period later."""

CANDIDATES = 64
"""How many periods are tried at most."""


def iteration_starts(trace: Trace) -> NDArray[np.int64]:
    """Return the first step of each iteration but the first, ascending; empty when there is no loop.

    Where all steps look alike, with one access each, the buffers themselves tell them apart.
    ``trace.meta["iterations"]``, the first steps of all iterations, goes before what is found out.
    """
    named = trace.meta.get("iterations")
    if named is not None:
        starts = np.unique(np.asarray(named, dtype=np.int64))
        return starts[starts > 0]
    signatures = step_signatures(trace)
    if trace.access_count == trace.step_count and not signatures.any():
        signatures = trace.accessed.astype(np.int64)
    period = loop_period(signatures)
    if not period:
        return np.empty(0, dtype=np.int64)
    return np.arange(trace.step_count % period or period, trace.step_count, period)


def loop_period(signatures: NDArray[np.int64]) -> int:
    """Return the number of steps after which most of a loop's steps come again, or 0.

    Layers repeat within an iteration, so the gaps between the rarest signatures are tried, and the
    likeliest wins; of equals the shortest.
    """
    candidates = _rare_gaps(signatures)
    likeness = [float(np.mean(signatures[:-gap] == signatures[gap:])) for gap in candidates]
    best = max(likeness, default=0.0)
    return candidates[likeness.index(best)] if best >= LIKENESS else 0


def _rare_gaps(signatures: NDArray[np.int64]) -> list[int]:
    """Return gaps between neighbours of one signature, those of the rarest signatures, ascending."""
    order = np.argsort(signatures, kind="stable")
    same = signatures[order[1:]] == signatures[order[:-1]]
    gaps = (order[1:] - order[:-1])[same]
    rarity = np.bincount(signatures, minlength=1)[signatures[order[1:]][same]]
    rarest_first = gaps[np.argsort(rarity, kind="stable")]
    distinct = list(dict.fromkeys(rarest_first.tolist()))[:CANDIDATES]
    return sorted(int(gap) for gap in distinct)
