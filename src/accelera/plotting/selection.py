"""Selection of the few lines of many that a picture shows at first: those that differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

MOST_LINES = 5


def shown_lines(
    values: Mapping[str, ArrayLike], chosen: Sequence[str] | None = None, *, known: str = "lru"
) -> list[str]:
    """Return up to five names, those with the smallest sums first.

    ``chosen``, if given; else the smallest, ``known``, and those whose sums differ most from them.
    """
    sums = {name: float(np.sum(value)) for name, value in values.items()}
    ranked = sorted(sums, key=lambda name: (sums[name], name))
    if chosen:
        return [name for name in ranked if name in chosen][:MOST_LINES]
    if len(ranked) <= MOST_LINES:
        return ranked
    kept = [ranked[0], *([known] if known in ranked[1:] else [])]
    while len(kept) < MOST_LINES:
        left = [name for name in ranked if name not in kept]
        kept.append(max(left, key=lambda name: min(abs(sums[name] - sums[one]) for one in kept)))
    return [name for name in ranked if name in kept]
