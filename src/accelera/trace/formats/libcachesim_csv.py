"""libCacheSim's CSV: ``time, obj_id, obj_size, next_access_vtime``; accesses are counted from 1.

Only accesses are kept: no kinds, no steps. With a header the columns may come in any order and by any of the
usual names; without one they are in that order.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from accelera.errors import TraceFormatError
from accelera.trace.dataframe import as_numbers
from accelera.trace.formats.csv import cells_of
from accelera.trace.formats.tables import trace_of_table
from accelera.trace.reuse import NEVER
from accelera.trace.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS = ("time", "obj_id", "obj_size", "next_access_vtime")
_IDS = ("obj_id", "object", "object_id", "id", "key", "lbn")
_SIZES = ("obj_size", "size", "object_size", "length")


def write(trace: Trace, path: Path) -> None:
    """Write the accesses."""
    import pandas as pd

    following = np.where(trace.next_use == NEVER, -1, trace.next_use.astype(np.int64) + 1)
    columns = {
        "time": trace.step[trace.is_access],
        "obj_id": trace.accessed,
        "obj_size": trace.size_bytes[trace.accessed],
        "next_access_vtime": following,
    }
    pd.DataFrame(columns).to_csv(path, index=False)


def read(path: Path) -> Trace:
    """Read accesses, each a step of its own; raises TraceFormatError naming line and column."""
    header = _has_header(path)
    cells = cells_of(path) if header else cells_of(path, names=_COLUMNS)
    by_name = {str(column).strip(" #").lower(): column for column in cells.columns}
    ids, sizes = _column_named(path, by_name, _IDS), _column_named(path, by_name, _SIZES)
    table = cells[[ids, sizes]].set_axis(["tensor_id", "size_bytes"], axis=1)
    return trace_of_table(
        _with_largest_sizes(table),
        path,
        label=lambda row: f"{path}: line {row + 1 + header}",
        called={"tensor_id": str(ids), "size_bytes": str(sizes)},
    )


def _has_header(path: Path) -> bool:
    """Return whether the first line holds names: no cell of it is a number."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return not any(cell.strip().isdigit() for cell in file.readline().split(","))


def _column_named(path: Path, by_name: dict[str, Any], known: tuple[str, ...]) -> Any:
    for name in known:
        if name in by_name:
            return by_name[name]
    raise TraceFormatError(
        f"[read_trace] {path} has the columns {', '.join(by_name)}; none is called {' or '.join(known)}"
    )


def _with_largest_sizes(table: pd.DataFrame) -> pd.DataFrame:
    """Give every object its largest size; sizes that are no numbers stay, to be refused."""
    sizes = as_numbers(table["size_bytes"])
    if sizes.isna().any():
        return table
    largest: pd.DataFrame = table.assign(
        size_bytes=sizes.groupby(table["tensor_id"], sort=False).transform("max")
    )
    return largest
