"""CSV: one row per event and a header; the columns of ``Trace.to_pandas``, of which two are enough.

Facts about the recording (``meta``) and steps without events are not kept.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from accelera.errors import OutOfMemoryError, TraceFormatError
from accelera.trace.formats.tables import trace_of_table
from accelera.trace.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

_TEXTS = ("tensor_id", "kind", "name", "role", "dtype", "op", "model_type")
_NUMBERS = (
    "buffer",
    "size_bytes",
    "size_mb",
    "reuse_distance",
    "reuse_distance_bytes",
    "step",
    "stride",
    "flops",
    "seconds",
    "eviction_score",
)


def write(trace: Trace, path: Path) -> None:
    """Write the table of ``Trace.to_pandas``, from which a trace is built again."""
    trace.to_pandas().to_csv(path, index=False)


def read(path: Path) -> Trace:
    """Read a table; raises TraceFormatError naming line and column."""
    return trace_of_table(cells_of(path), path, label=lambda row: f"{path}: line {row + 2}")


def cells_of(path: Path, names: tuple[str, ...] | None = None) -> pd.DataFrame:
    """Return a CSV file's cells, those of a column as numbers if all of them are.

    Parameters
    ----------
    names
        Of the columns, in a file without a header.

    Raises TraceFormatError when it is no CSV file.
    """
    import pandas as pd

    try:
        with warnings.catch_warnings():
            # Pandas cuts a first row that is too long, and only warns.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            return _parsed(path, names)
    except UnicodeDecodeError as error:
        raise TraceFormatError(
            f"[read_trace] {path}: byte {error.start} is not UTF-8 text ({error.reason}); is it a CSV file?"
        ) from error
    except pd.errors.ParserWarning as error:
        raise TraceFormatError(
            f"[read_trace] {path}: line {1 if names else 2} has more cells than there are columns; quote "
            "cells that hold a comma"
        ) from error
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        if "out of memory" in str(error):  # of the C parser
            raise OutOfMemoryError(str(error)) from error
        raise TraceFormatError(f"[read_trace] {path} is not a sound CSV file: {error}") from error


def _parsed(path: Path, names: tuple[str, ...] | None) -> pd.DataFrame:
    import pandas as pd

    # Before 3.1 the default parser may be off in the last digit; 3.1 is exact and deprecates the option.
    is_exact = tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1)
    return pd.read_csv(
        path,
        header=0 if names is None else None,
        names=names,
        index_col=False,
        dtype=dict.fromkeys(_TEXTS, str),
        keep_default_na=False,
        na_values={column: [""] for column in _NUMBERS},
        skip_blank_lines=False,
        low_memory=False,
        encoding="utf-8",
        float_precision=None if is_exact else "round_trip",
    )
