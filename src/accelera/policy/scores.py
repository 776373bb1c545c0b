"""Scores per access, which the ``scored`` policy follows: the highest goes first."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from accelera.policy.memo import once_per_trace
from accelera.trace import Trace, stack_distances


@once_per_trace
def heuristic_scores(trace: Trace) -> NDArray[np.float64]:
    """Return ``0.4 * size + 0.5 * reuse_distance + 0.1 * stride`` per access, shape (accesses,).

    Each part is divided by its largest value in the trace, so that it lies in 0..1; a part that is 0
    throughout stays 0. The reuse distance is the true stack distance: how many distinct buffers were
    accessed since this one's last access. A first access has none: it counts as the largest (1), for
    nothing speaks for a second use. Strides count by magnitude. The score of an access uses nothing
    after it but the three scales.
    """
    accesses = trace.is_access
    distance = stack_distances(trace).buffers.astype(np.float64)
    reuse = _share(np.where(distance < 0, 0.0, distance))
    reuse[distance < 0] = 1.0
    size = _share(trace.size_bytes[trace.accessed].astype(np.float64))
    stride = _share(np.abs(trace.stride[accesses]).astype(np.float64))
    scores: NDArray[np.float64] = 0.4 * size + 0.5 * reuse + 0.1 * stride
    return scores


def _share(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ``values``, none negative, divided by the largest."""
    largest = values.max(initial=0.0)
    return values / largest if largest > 0 else values
