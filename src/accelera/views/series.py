"""Long series thinned to what a chart can show, with their peaks and valleys kept."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MOST_POINTS = 600
"""Points of a series, at most."""


def thinned(values: NDArray[np.int64], most: int = MOST_POINTS) -> NDArray[np.intp]:
    """Return the indices of up to ``most`` values, rising: the first, the last, all extremes that count.

    The values are cut into equal runs, and the lowest and the highest of each run are kept (first of equals),
    so the highest of all stays.
    """
    count = len(values)
    if count <= most:
        return np.arange(count)
    runs = (most - 2) // 2
    edges = np.linspace(0, count, runs + 1).astype(np.intp)
    kept = [0, count - 1]
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        part = values[begin:end]
        kept += (begin + int(part.argmin()), begin + int(part.argmax()))
    return np.unique(kept)
