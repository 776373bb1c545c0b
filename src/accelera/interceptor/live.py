"""Bytes alive over a trace, from its events alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from accelera.trace import Kind, Trace


def live_bytes(trace: Trace) -> NDArray[np.int64]:
    """Return the bytes alive after each event, shape (events,).

    A buffer whose first event is a read existed beforehand and is alive from the start; any other from its
    first event on; all until they are freed.
    """
    born = np.unique(trace.buffer, return_index=True)[1]
    change = np.zeros(len(trace), dtype=np.int64)
    outside = trace.kind[born] == Kind.READ
    change[born[~outside]] = trace.size_bytes[~outside]
    freed = trace.kind == Kind.FREE
    change[freed] -= trace.size_bytes[trace.buffer[freed]]
    alive: NDArray[np.int64] = np.cumsum(change) + trace.size_bytes[outside].sum()
    return alive


def peak_live_bytes(trace: Trace) -> int:
    """Return the most bytes alive at once."""
    return int(live_bytes(trace).max(initial=0))
