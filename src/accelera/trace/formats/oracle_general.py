"""libCacheSim's oracleGeneral: records of 24 bytes, little-endian and packed.

    u32 time   u64 object id   u32 object size   i64 time of the next access, counted from 1; -1: none

Only accesses are kept: no kinds, no steps, no names. Sizes end at 4 GiB - 1. The next access is worked out
anew on reading.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from accelera.errors import TraceFormatError
from accelera.trace.formats.tables import largest_sizes
from accelera.trace.reuse import NEVER
from accelera.trace.trace import Trace

RECORD = np.dtype([("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")])
_LARGEST = 2**32 - 1


def write(trace: Trace, path: Path) -> None:
    """Write the accesses; raises TraceFormatError when a size does not fit in 32 bits."""
    large = np.flatnonzero(trace.size_bytes > _LARGEST)
    if len(large):
        name, size = trace.names[large[0]], trace.size_bytes[large[0]]
        raise TraceFormatError(
            f"[write_trace] {name!r} has {size} bytes and oracleGeneral holds at most {_LARGEST}; "
            'write format="libcachesim_csv", which has no such limit'
        )
    records = np.zeros(trace.access_count, RECORD)
    records["time"] = trace.step[trace.is_access]
    records["id"] = trace.accessed
    records["size"] = trace.size_bytes[trace.accessed]
    records["next"] = np.where(trace.next_use == NEVER, -1, trace.next_use.astype(np.int64) + 1)
    path.write_bytes(records.tobytes())


def read(path: Path) -> Trace:
    """Read accesses, each a step of its own; raises TraceFormatError naming record, field and byte."""
    size = path.stat().st_size
    if size % RECORD.itemsize:
        whole = size // RECORD.itemsize
        raise TraceFormatError(
            f"[read_trace] {path} ends at byte {size}, inside record {whole}, which begins at byte "
            f"{whole * RECORD.itemsize}: it is cut short, or no oracleGeneral file"
        )
    records = np.fromfile(path, RECORD)
    _check_next(path, records["next"])
    _, first, ids = np.unique(records["id"], return_index=True, return_inverse=True)
    return Trace.from_arrays(
        ids,
        largest_sizes(ids, records["size"].astype(np.int64)),
        names=[str(each) for each in records["id"][np.sort(first)]],
        meta={"source": path.name},
    )


def _check_next(path: Path, following: NDArray[np.int64]) -> None:
    """Refuse what cannot be: a next access that has been. It tells other files from this format."""
    bad = np.flatnonzero((following >= 0) & (following <= np.arange(len(following))))
    if len(bad):
        row = int(bad[0])
        place = f"record {row} (byte {row * RECORD.itemsize}), next access"
        raise TraceFormatError(
            f"[read_trace] {path}: {place}: {following[row]} "
            "is not after the record itself; is it an oracleGeneral file?"
        )
