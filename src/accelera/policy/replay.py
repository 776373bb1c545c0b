"""Iteration replay: a loop does next time what it did last time.

Training steps and decoded tokens repeat. So the access that took an access' place in the iteration
before tells when its buffer will be used next: after as many accesses as it took then.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from accelera.policy.loops import iteration_starts
from accelera.policy.memo import once_per_trace
from accelera.policy.signatures import access_signatures, occurrences
from accelera.trace import NEVER, Trace


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
