"""A trace's fingerprint: the same events, whatever file they come from, have the same one."""

from __future__ import annotations

import hashlib
import json

import numpy as np

from accelera.trace.trace import Trace


def content_hash(trace: Trace) -> str:
    """Return the SHA-256 of everything in ``trace`` but ``meta``, in hexadecimal.

    Parameters
    ----------
    trace
        The trace to identify.
    """
    digest = hashlib.sha256()
    arrays = (
        trace.buffer,
        trace.kind,
        trace.step,
        trace.stride,
        trace.size_bytes,
        trace.flops,
        trace.seconds,
    )
    for array in (*arrays, np.zeros(0) if trace.scores is None else trace.scores):
        # NaN has many bit patterns; one stands for all.
        values = np.where(array != array, np.nan, array) if array.dtype.kind == "f" else array
        digest.update(values.astype(values.dtype.newbyteorder("<")).tobytes())
    for texts in (trace.names, trace.roles, trace.dtypes, trace.ops, (trace.model_type,)):
        digest.update(json.dumps(texts).encode())
    return digest.hexdigest()
