"""A trace as a pandas table: what is stored, and what the seed's table shows besides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from accelera.errors import ShapeError
from accelera.trace.flat import MIB, per_event, stored_columns, tensor_ids

if TYPE_CHECKING:
    import pandas as pd


def frame_of(trace: Any, scores: ArrayLike | None) -> pd.DataFrame:
    """Return the table of a ``Trace``; see ``Trace.to_pandas``."""
    import pandas as pd

    columns = stored_columns(trace)
    columns["tensor_id"] = tensor_ids(trace.names)[trace.buffer]
    columns["size_mb"] = columns["size_bytes"] / MIB
    columns["model_type"] = np.full(len(trace), trace.model_type, object)
    if scores is not None:
        columns["eviction_score"] = per_event(trace, _checked_scores(trace, scores))
    table: pd.DataFrame = pd.DataFrame(columns)
    return table


def _checked_scores(trace: Any, scores: ArrayLike) -> Any:
    found = np.asarray(scores, np.float64)
    if found.shape != (trace.access_count,):
        raise ShapeError(f"[trace] scores has shape {found.shape} for {trace.access_count} accesses")
    return found
