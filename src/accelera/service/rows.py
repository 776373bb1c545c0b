"""A trace as JSON: one row per access, or columns, made from its arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from accelera.trace import Kind, Trace, stack_distances
from accelera.trace.dataframe import MIB, tensor_ids
from accelera.trace.reuse import FIRST

_KINDS = {int(Kind.READ): "read", int(Kind.WRITE): "write"}


def columns_of(trace: Trace, scores: NDArray[np.float64] | None = None) -> dict[str, list[Any]]:
    """Return the seed's columns, one value per access; events that are none, such as frees, are left out.

    ``reuse_distance`` counts distinct other tensors since the last use, and is null for a first use;
    ``size_mb`` is of 2**20 bytes.
    """
    accesses = trace.is_access
    buffers, steps = trace.buffer[accesses], trace.step[accesses]
    sizes = trace.size_bytes[buffers]
    distances = stack_distances(trace).buffers
    columns: dict[str, list[Any]] = {
        "tensor_id": tensor_ids(trace.names)[buffers].tolist(),
        "size_mb": (sizes / MIB).tolist(),
        "reuse_distance": [None if one == FIRST else one for one in distances.tolist()],
        "stride": trace.stride[accesses].tolist(),
        "op": np.asarray(trace.ops, object)[steps].tolist(),
        "model_type": [trace.model_type] * len(buffers),
        "kind": [_KINDS[one] for one in trace.kind[accesses].tolist()],
        "step": steps.tolist(),
        "size_bytes": sizes.tolist(),
        "role": np.asarray(trace.roles, object)[buffers].tolist(),
    }
    if scores is not None:
        columns["eviction_score"] = [None if not np.isfinite(one) else one for one in scores.tolist()]
    return columns


def rows_of(trace: Trace, scores: NDArray[np.float64] | None = None) -> list[dict[str, Any]]:
    """Return ``columns_of`` as one object per access."""
    columns = columns_of(trace, scores)
    names = tuple(columns)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]
