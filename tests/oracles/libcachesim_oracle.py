"""Run libCacheSim's policies over a trace: ``python libcachesim_oracle.py REQUESTS ANSWERS``, both JSON.

It is GPL and prints in colours, so it stays in a process of its own.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

POLICIES = {
    "arc": "ARC",
    "belady": "Belady",
    "clock": "Clock",
    "fifo": "FIFO",
    "gdsf": "GDSF",
    "lfu": "LFU",
    "lirs": "LIRS",
    "lru": "LRU",
    "s3fifo": "S3FIFO",
    "sieve": "Sieve",
}
"""Our names and theirs."""

RECORD = np.dtype([("time", "<u4"), ("id", "<u8"), ("nbytes", "<u4"), ("next", "<i8")])
"""One request of an oracleGeneral file; times of next accesses count from 1."""


def write_oracle_general(path: Path, ids: np.ndarray, nbytes: np.ndarray, next_use: np.ndarray) -> None:
    """Write requests as libCacheSim reads them; ``next_use`` is -1 where there is none."""
    records = np.zeros(len(ids), RECORD)
    records["time"] = np.arange(len(ids))
    records["id"] = ids
    records["nbytes"] = nbytes
    records["next"] = np.where(next_use < 0, -1, next_use + 1)
    records.tofile(path)


def figures(trace: Path, policy: str, capacity_bytes: int, nbytes: np.ndarray) -> dict[str, int]:
    """Return misses and miss bytes of one policy over the file."""
    import libcachesim

    cache = getattr(libcachesim, POLICIES[policy])(capacity_bytes, hashpower=16)
    reader = libcachesim.TraceReader(str(trace), libcachesim.TraceType.ORACLE_GENERAL_TRACE)
    misses, miss_bytes = cache.process_trace(reader)
    return {"misses": round(misses * len(nbytes)), "miss_bytes": round(miss_bytes * int(nbytes.sum()))}


def main(requests: dict[str, Any]) -> list[dict[str, int]]:
    """Answer every request: arrays of one trace, and the policies and capacities to run."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.oracleGeneral.bin"
        columns = [np.array(requests[name], dtype=np.int64) for name in ("ids", "nbytes", "next_use")]
        write_oracle_general(path, *columns)
        return [figures(path, policy, nbytes, columns[1]) for policy, nbytes in requests["runs"]]


if __name__ == "__main__":
    answers = main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    Path(sys.argv[2]).write_text(json.dumps(answers), encoding="utf-8")
