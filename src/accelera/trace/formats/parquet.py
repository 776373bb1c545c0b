"""Parquet: one row per event, dictionary-encoded, with the rest of the trace in the file's metadata.

Any tool that reads Parquet reads the table; here the trace comes back exactly. Tables from elsewhere do as
well, as far as ``Trace.from_pandas`` understands their columns.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from accelera._json_values import parse_json
from accelera.errors import TraceFormatError
from accelera.trace.dataframe import STORED, codes_and_values, numbers
from accelera.trace.formats.tables import facts_of, trace_of, trace_of_table
from accelera.trace.trace import Trace

_KEY = b"accelera.trace"


def write(trace: Trace, path: Path) -> None:
    """Write ``trace`` with everything in it."""
    import pyarrow
    from pyarrow import parquet

    found = {column: pyarrow.array(values) for column, values in numbers(trace).items()}
    for column, (codes, values) in codes_and_values(trace).items():
        unique, index = np.unique(values.astype(str), return_inverse=True)
        found[column] = pyarrow.DictionaryArray.from_arrays(
            pyarrow.array(index.astype(np.int32)[codes]), pyarrow.array(unique.tolist(), pyarrow.string())
        )
    table = pyarrow.table({column: found[column] for column in STORED if column in found})
    parquet.write_table(table.replace_schema_metadata({_KEY: json.dumps(facts_of(trace))}), path)


def read(path: Path) -> Trace:
    """Read a trace; raises TraceFormatError when the file is damaged or not what it says."""
    stored, frame = _contents(path)
    label = f"{path}: row {{}}".format
    if stored is None:
        return trace_of_table(frame, path, label)
    return trace_of(frame, _facts(stored), path, label)


def _facts(stored: bytes) -> Any:
    try:
        return parse_json(stored)
    except ValueError:
        return None


def _contents(path: Path) -> tuple[bytes | None, Any]:
    """Return what is stored beside the table, and the table in pandas, dictionaries as categories."""
    import pyarrow
    from pyarrow import parquet

    path.open("rb").close()
    try:
        table = parquet.read_table(path, partitioning=None)
        stored = (table.schema.metadata or {}).get(_KEY)
        return stored, table.replace_schema_metadata(None).to_pandas()
    except MemoryError:  # pyarrow's own is an ArrowException too, and says nothing of the file
        raise
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise TraceFormatError(f"[read_trace] {path} is not a sound Parquet file: {error}") from error
