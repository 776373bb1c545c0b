"""JSON: everything in a trace, by columns; or rows as the seed's service answers.

{"format": "accelera.trace", "version": 1, "model_type": …, "meta": {…}, …, "columns": {"buffer": […], …}}
[{"tensor_id": "Q_0", "size_mb": 16, …}, …]              or {"trace": [the same], …}
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelera.errors import TraceFormatError
from accelera.trace.dataframe import stored_columns
from accelera.trace.formats.tables import facts_of, trace_of, trace_of_table
from accelera.trace.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

FORMAT = "accelera.trace"
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""Half of a character; without its other half it is text that can be neither written nor shown."""


def write(trace: Trace, path: Path) -> None:
    """Write ``trace`` with everything in it."""
    columns = {name: _nullable(values) for name, values in stored_columns(trace).items()}
    document = {"format": FORMAT, **facts_of(trace), "columns": columns}
    path.write_text(json.dumps(document, allow_nan=False), encoding="utf-8")


def read(path: Path) -> Trace:
    """Read either shape; raises TraceFormatError naming row and column, or the line."""
    document = document_of(path)
    found = document if isinstance(document, dict) else {"trace": document}
    if found.get("format") == FORMAT:
        return trace_of(_table(path, found.get("columns")), found, path, f"{path}: row {{}}".format)
    return trace_of_table(_table(path, found.get("trace"), rows=True), path, f"{path}: row {{}}".format)


def document_of(path: Path) -> Any:
    """Return a JSON file's contents; raises TraceFormatError naming the line and the column in it."""
    try:
        content = path.read_bytes()
        found = json.loads(content)
        if _SURROGATE.search(content):
            json.dumps(found, ensure_ascii=False).encode("utf-8")
        return found
    except UnicodeEncodeError as error:
        raise TraceFormatError(
            f"[read_trace] {path} is not sound JSON: {error.object[error.start]!r} is half a character"
        ) from error
    except UnicodeDecodeError as error:
        raise TraceFormatError(f"[read_trace] {path}: byte {error.start} is not UTF-8 text") from error
    except json.JSONDecodeError as error:
        raise TraceFormatError(
            f"[read_trace] {path} is not sound JSON: line {error.lineno}, column {error.colno}: {error.msg}"
        ) from error
    except ValueError as error:
        raise TraceFormatError(f"[read_trace] {path} is not sound JSON: {error}") from error
    except RecursionError as error:
        raise TraceFormatError(f"[read_trace] {path} is not sound JSON: it is nested too deep") from error


def _nullable(values: Any) -> list[Any]:
    return [None if value != value else value for value in values.tolist()]


def _table(path: Path, given: Any, *, rows: bool = False) -> pd.DataFrame:
    """Return a list of ``rows``, or an object of columns, as a table."""
    import pandas as pd

    whole, part = (list, dict) if rows else (dict, list)
    if not isinstance(given, whole) or not all(isinstance(each, part) for each in _parts(given)):
        raise TraceFormatError(
            f"[read_trace] {path} holds neither what write_trace writes nor a list of rows; write for "
            'example [{"tensor_id": "Q_0", "size_mb": 16}]'
        )
    try:
        table: pd.DataFrame = pd.DataFrame(given)
    except ValueError as error:
        raise TraceFormatError(f"[read_trace] {path}, columns: {error}; write it again") from error
    return table


def _parts(given: Any) -> Iterable[Any]:
    return given.values() if isinstance(given, dict) else given
