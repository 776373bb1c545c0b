"""Where a trace's iterations begin."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from accelera.policy.signatures import occurrences, step_signatures
from accelera.trace import Trace

COVER = 0.8
"""Share of the trace that iterations must cover."""

AGREEMENT = 0.5
"""Share of the marks that must come once in each iteration."""

MARKS = 3
"""How many marks must agree, where there are so many signatures: fewer may do so by chance."""

CANDIDATES = 64
"""How many counts of iterations are tried at most, from the fewest."""


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
    return repetitions(signatures)[1:]


def repetitions(signatures: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where the repetitions of a sequence begin, shape (repetitions,); empty when it has none.

    A loop of n iterations has marks: signatures that come just n times, one after the other in the same
    order. Layers within an iteration repeat too, but in backward and forward order, and not over the whole
    trace. The fewest iterations that most marks agree on, and that cover the trace, are taken.
    """
    counts = np.bincount(signatures, minlength=1)
    enough = min(MARKS, int(np.count_nonzero(counts)))
    for repeats in np.unique(counts[counts > 1])[:CANDIDATES]:
        places = _places(signatures, counts == repeats, int(repeats))
        lead: NDArray[np.int64] = places[0]
        span = (lead[-1] - lead[0]) * repeats / (repeats - 1)
        if span >= COVER * len(signatures) and _agreeing(places) >= max(enough, AGREEMENT * len(places)):
            return lead
    return np.empty(0, dtype=np.int64)


def _places(signatures: NDArray[np.int64], mark: NDArray[np.bool_], repeats: int) -> NDArray[np.int64]:
    """Return the positions of all marks, shape (marks, repeats), the mark that comes first in front."""
    positions = np.flatnonzero(mark[signatures])
    order = np.lexsort((occurrences(signatures[positions]), signatures[positions]))
    places = positions[order].reshape(-1, repeats)
    return places[np.argsort(places[:, 0])]


def _agreeing(places: NDArray[np.int64]) -> int:
    """Return the number of marks whose every occurrence lies between two neighbouring ones of the first."""
    lead = places[0]
    after = np.append(lead[1:], np.iinfo(np.int64).max)
    return int(np.count_nonzero(((places >= lead) & (places < after)).all(axis=1)))
