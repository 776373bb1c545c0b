"""Bytes alive over a trace, from its events alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from accelera.trace import Occupancy, Trace


def live_bytes(trace: Trace) -> NDArray[np.int64]:
    """Return the bytes alive after each event, shape (events,); see ``accelera.trace.Occupancy``.

    Parameters
    ----------
    trace
        The accesses, in order.
    """
    return Occupancy(trace).after_events()


def peak_live_bytes(trace: Trace) -> int:
    """Return the most bytes alive at once.

    Parameters
    ----------
    trace
        The accesses, in order.
    """
    return Occupancy(trace).peak_bytes
