"""How regular reuse is: the two figures of the seed's validation, over true stack distances."""

from __future__ import annotations

import numpy as np

from accelera.trace.stack_distance import StackDistances

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
