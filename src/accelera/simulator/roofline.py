"""How long each step of a trace computes: as measured or planned, else by the machine's roofline."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from accelera.memory import Compute
from accelera.trace import Trace


def step_seconds(trace: Trace, compute: Compute | None) -> NDArray[np.float64]:
    """Return the seconds of arithmetic per step, shape (steps,).

    A trace's own seconds go first; where they are unknown ``compute`` estimates, and without it a step
    takes no time.
    """
    if compute is None:
        return np.nan_to_num(trace.seconds, nan=0.0)
    estimated = compute.seconds(trace.flops, touched_bytes(trace))
    return np.where(np.isnan(trace.seconds), estimated, trace.seconds)


def touched_bytes(trace: Trace) -> NDArray[np.float64]:
    """Return the bytes that each step reads and writes in the first tier, shape (steps,)."""
    sizes = trace.size_bytes[trace.accessed]
    counted = np.bincount(trace.step[trace.is_access], weights=sizes, minlength=trace.step_count)
    return counted.astype(np.float64)
