"""Parquet: one row per event, dictionary-encoded, with the rest of the trace in the file's metadata.

Any tool that reads Parquet reads the table; here the trace comes back exactly. Tables from elsewhere do as
well, as far as ``Trace.from_pandas`` understands their columns.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from accelera.errors import TraceFormatError
from accelera.trace.cells import columns_of_frame
from accelera.trace.content_hash import content_hash
from accelera.trace.flat import STORED, codes_and_values, idle_steps, numbers
from accelera.trace.trace import Trace

if TYPE_CHECKING:
    import pyarrow

VERSION = 1
"""Of what the metadata holds; later versions are refused."""

_KEY = b"accelera.trace"


def write(trace: Trace, path: Path) -> None:
    """Write ``trace`` with everything in it."""
    import pyarrow
    from pyarrow import parquet

    found = {column: pyarrow.array(values) for column, values in numbers(trace).items()}
    for column, (codes, values) in codes_and_values(trace).items():
        unique, index = _unique(values)
        found[column] = pyarrow.DictionaryArray.from_arrays(pyarrow.array(index[codes]), unique)
    table = pyarrow.table({column: found[column] for column in STORED if column in found})
    parquet.write_table(table.replace_schema_metadata({_KEY: json.dumps(_facts(trace))}), path)


def read(path: Path) -> Trace:
    """Read a trace; raises TraceFormatError when the file is damaged or not what it says."""
    table = _table(path)
    facts = _checked_facts(path, (table.schema.metadata or {}).get(_KEY))
    frame = table.replace_schema_metadata(None).to_pandas()
    columns = columns_of_frame(frame, label=f"{path}: row {{}}".format, idle=facts.get("idle_steps"))
    if not facts:
        return replace(Trace.from_pandas(frame), meta={"source": path.name})
    trace = Trace(**columns, model_type=facts["model_type"], meta=facts["meta"])
    if content_hash(trace) != facts["content_hash"]:
        raise TraceFormatError(
            f"[read_trace] {path}: its contents do not match the hash it was written with; it was damaged or "
            "edited, write it again"
        )
    return trace


def _unique(values: Any) -> tuple[list[str], Any]:
    unique, index = np.unique(values.astype(str) if len(values) else np.zeros(0, str), return_inverse=True)
    return unique.tolist(), index.astype(np.int32)


def _facts(trace: Trace) -> dict[str, Any]:
    return {
        "version": VERSION,
        "model_type": trace.model_type,
        "meta": dict(trace.meta),
        "idle_steps": idle_steps(trace),
        "content_hash": content_hash(trace),
    }


def _table(path: Path) -> pyarrow.Table:
    import pyarrow
    from pyarrow import parquet

    try:
        return parquet.read_table(path, partitioning=None)
    except (pyarrow.ArrowException, OSError) as error:
        path.open("rb").close()
        raise TraceFormatError(f"[read_trace] {path} is not a sound Parquet file: {error}") from error


def _checked_facts(path: Path, stored: bytes | None) -> dict[str, Any]:
    if stored is None:
        return {}
    facts: dict[str, Any] = json.loads(stored)
    if facts["version"] > VERSION:
        raise TraceFormatError(
            f"[read_trace] {path} has version {facts['version']}, and {VERSION} is the latest known here; "
            "update Accelera"
        )
    return facts
