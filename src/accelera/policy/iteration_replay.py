"""Iteration replay: the next use of a buffer as the iteration before had it.

Training steps and decoded tokens repeat. So the access that took an access' place in the iteration
before tells when its buffer will be used next: after as many accesses as it took then.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from accelera.policy.contract import once_per_trace
from accelera.trace import Trace
from accelera.trace._internal import NEVER


def access_signatures(trace: Trace) -> NDArray[np.int64]:
    """Return a dense number per access, equal where op, place among operands, size and kind are.

    Shape (accesses,).
    """
    accesses = trace.is_access
    steps = trace.step[accesses]
    columns = (
        _op_numbers(trace)[steps],
        occurrences(steps),
        trace.size_bytes[trace.buffer[accesses]],
        trace.kind[accesses],
    )
    return numbered(*columns)


def step_signatures(trace: Trace) -> NDArray[np.int64]:
    """Return a dense number per step, equal where op and the signatures of all accesses are; (steps,)."""
    signature = access_signatures(trace).astype(np.uint64)
    steps = trace.step[trace.is_access]
    mixed = np.zeros(trace.step_count, dtype=np.uint64)
    np.add.at(mixed, steps, _mixed_bits(signature))
    return numbered(_op_numbers(trace), mixed)


def occurrences(values: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return per position how often its value came before; shape (n,)."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    new = np.ones(len(values), dtype=bool)
    new[1:] = ordered[1:] != ordered[:-1]
    start = np.maximum.accumulate(np.where(new, np.arange(len(values)), 0))
    counts = np.empty(len(values), dtype=np.int64)
    counts[order] = np.arange(len(values)) - start
    return counts


def numbered(*columns: NDArray[np.generic]) -> NDArray[np.int64]:
    """Return one dense number per row, equal where all columns are; shape (n,)."""
    number = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        _, inverse = np.unique(column, return_inverse=True)
        widest = int(inverse.max(initial=0)) + 1
        _, number = np.unique(number * widest + inverse, return_inverse=True)
    return number.astype(np.int64)


def _op_numbers(trace: Trace) -> NDArray[np.int64]:
    return np.unique(np.array(trace.ops, dtype=object).astype(str), return_inverse=True)[1].astype(np.int64)


def _mixed_bits(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return 64 well-mixed bits per value (the finisher of SplitMix64), whose sums tell sets apart."""
    mixed: NDArray[np.uint64] = (values + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


COVER = 0.8
"""Share of the trace that iterations must cover."""

AGREEMENT = 0.5
"""Share of the marks that must come once in each iteration."""

MARKS = 3
"""Least number of marks that must agree, if there are as many signatures: fewer may agree by chance."""

CANDIDATES = 64
"""Most iteration counts that are tried, in rising order."""


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
        if span >= COVER * len(signatures) and _agreeing_marks(places) >= max(
            enough, AGREEMENT * len(places)
        ):
            return lead
    return np.empty(0, dtype=np.int64)


def _places(signatures: NDArray[np.int64], mark: NDArray[np.bool_], repeats: int) -> NDArray[np.int64]:
    """Return the positions of all marks, shape (marks, repeats), the mark that comes first in front."""
    positions = np.flatnonzero(mark[signatures])
    order = np.lexsort((occurrences(signatures[positions]), signatures[positions]))
    places = positions[order].reshape(-1, repeats)
    return places[np.argsort(places[:, 0])]


def _agreeing_marks(places: NDArray[np.int64]) -> int:
    """Return the number of marks whose every occurrence lies between two neighbouring ones of the first."""
    lead = places[0]
    after = np.append(lead[1:], np.iinfo(np.int64).max)
    return int(np.count_nonzero(((places >= lead) & (places < after)).all(axis=1)))


@once_per_trace
def replay_next_uses(trace: Trace) -> NDArray[np.float64]:
    """Return per access the predicted time of its buffer's next use, shape (accesses,).

    An access and the one of the iteration before with the same op, place among the operands, size, kind
    and occurrence correspond. If the older one's buffer was used again by now, after d accesses, the
    prediction is d accesses from now; if not, ``NEVER``. Without a counterpart, as in the first
    iteration, the prediction is such that of two of these the longer untouched goes first, as in LRU,
    and after everything else.

    No value depends on an access after its own. Only where iterations begin is taken as known: from
    ``trace.meta["iterations"]``, the list of their first steps, or else from what repeats in the whole trace.
    """
    time = np.arange(trace.access_count, dtype=np.int64)
    before = counterparts(trace)
    predicted = -time.astype(np.float64)
    known = np.flatnonzero(before >= 0)
    last = before[known]
    then = trace.next_use[last].astype(np.int64)
    predicted[known] = np.where(then <= known, known + then - last, NEVER)
    return predicted


def counterparts(trace: Trace) -> NDArray[np.int64]:
    """Return per access the index of its counterpart one iteration before, or -1; shape (accesses,)."""
    starts = iteration_starts(trace)
    steps = trace.step[trace.is_access]
    iteration = np.searchsorted(starts, steps, side="right")
    signature = access_signatures(trace)
    count = len(signature)
    kinds = int(signature.max(initial=0)) + 1
    place = iteration.astype(np.int64) * kinds + signature
    occurrence = occurrences(place)
    widest = int(occurrence.max(initial=0)) + 1
    key = place * widest + occurrence
    order = np.argsort(key, kind="stable")
    wanted = key - kinds * widest
    found = np.searchsorted(key[order], wanted)
    found_at = order[np.minimum(found, max(count - 1, 0))] if count else found
    return np.where(key[found_at] == wanted, found_at, -1) if count else found_at
