"""A trace as a pandas table: what is stored, and what the seed's table shows besides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accelera.errors import ShapeError
from accelera.extras import needed_for
from accelera.trace.flat import MIB, per_event, stored_columns, tensor_ids
from accelera.trace.stack_distance import FIRST, stack_distances

if TYPE_CHECKING:
    import pandas as pd

ORDER = (
    "tensor_id",
    "size_mb",
    "reuse_distance",
    "reuse_distance_bytes",
    "stride",
    "op",
    "model_type",
    "eviction_score",
    "buffer",
    "size_bytes",
    "kind",
    "step",
    "name",
    "role",
    "dtype",
    "flops",
    "seconds",
)
"""The columns as they are shown, the seed's first."""


def frame_of(trace: Any, scores: ArrayLike | None) -> pd.DataFrame:
    """Return the table of a ``Trace``; see ``Trace.to_pandas``."""
    with needed_for("to_pandas"):
        import pandas as pd

    columns: dict[str, Any] = stored_columns(trace)
    columns["tensor_id"] = tensor_ids(trace.names)[trace.buffer]
    columns["size_mb"] = columns["size_bytes"] / MIB
    columns["model_type"] = np.full(len(trace), trace.model_type, object)
    if scores is not None:
        columns["eviction_score"] = per_event(trace, _checked_scores(trace, scores))
    found = stack_distances(trace)
    columns["reuse_distance"] = _where_reused(trace, found.buffers)
    columns["reuse_distance_bytes"] = _where_reused(trace, found.bytes)
    table: pd.DataFrame = pd.DataFrame({column: columns[column] for column in ORDER if column in columns})
    return table


def _where_reused(trace: Any, distances: NDArray[Any]) -> Any:
    """Return distances per event, NA for first uses and for events that are no accesses."""
    import pandas as pd

    values = np.full(len(trace), FIRST, np.int64)
    values[trace.is_access] = distances
    return pd.arrays.IntegerArray(values, values == FIRST)


def _checked_scores(trace: Any, scores: ArrayLike) -> NDArray[np.float64]:
    found = np.asarray(scores, np.float64)
    if found.shape != (trace.access_count,):
        raise ShapeError(f"[trace] scores has shape {found.shape} for {trace.access_count} accesses")
    return found
