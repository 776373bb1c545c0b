"""The plain cache beside libCacheSim: requests per second of each policy on one trace.

python -m benchmarks cache

Ten million requests by Zipf's law (exponent 1) over a million ids of many sizes, in a cache of a tenth
of their footprint. Both get the same requests, and the misses are printed side by side. What is timed
differs in one point: ours has the trace in memory, in dense ids; libCacheSim maps a file of it
(oracleGeneral, in the page cache) and reads a record per request.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from accelera.simulator import simulate_cache
from accelera.trace import Trace
from accelera.trace._internal import NEVER
from benchmarks.machine import save

THEIRS = {"lru": "LRU", "fifo": "FIFO", "sieve": "Sieve", "belady": "Belady", "gdsf": "GDSF"}
"""The policies that are compared, and libCacheSim's names for them."""

RECORD = np.dtype([("time", "<u4"), ("id", "<u8"), ("nbytes", "<u4"), ("next", "<i8")])
"""A request in an oracleGeneral file; next accesses count from 1."""


def main(arguments: list[str]) -> dict[str, Any]:
    """Print and save one line per policy."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks cache")
    parser.add_argument("--save")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--policies", nargs="*", default=list(THEIRS))
    options = parser.parse_args(arguments)
    trace = zipf(*((100_000, 10_000) if options.small else (10_000_000, 1_000_000)))
    capacity = trace.footprint_bytes // 10
    print(f"{len(trace):,} requests of {trace.buffer_count:,} ids, cache of {capacity:,} bytes")
    print("accelera: the trace is in memory; libCacheSim: it maps a file and parses each request")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.oracleGeneral.bin"
        write_requests(trace, file)
        rows = [_row(trace, name, capacity, file, options.rounds) for name in options.policies]
    figures = {"requests": len(trace), "ids": trace.buffer_count, "capacity_bytes": capacity, "rows": rows}
    if options.save:
        print("saved", save(options.save, figures))
    return figures


def zipf(requests: int, ids: int) -> Trace:
    """Return requests of ids whose popularity falls with their rank, of 1 to 4096 bytes each."""
    draw = np.random.default_rng(42)
    shares = np.cumsum(1.0 / np.arange(1, ids + 1))
    sequence = np.searchsorted(shares, draw.random(requests) * shares[-1])
    return Trace.from_arrays(sequence, draw.integers(1, 4097, ids)[sequence])


def write_requests(trace: Trace, file: Path) -> None:
    """Write the trace as libCacheSim reads it."""
    records = np.zeros(len(trace), RECORD)
    records["id"] = trace.accessed
    records["nbytes"] = trace.size_bytes[trace.accessed]
    records["next"] = np.where(trace.next_use == NEVER, -1, trace.next_use.astype(np.int64) + 1)
    records.tofile(file)


def _row(trace: Trace, name: str, capacity: int, file: Path, rounds: int) -> dict[str, Any]:
    """Return the best of ``rounds`` of both, in turn."""
    tried = [(_ours(trace, name, capacity), _theirs(file, name, capacity)) for _ in range(rounds)]
    ours = min((each[0] for each in tried), key=lambda figures: figures["seconds"])
    row: dict[str, Any] = {
        "policy": name,
        "misses": ours["misses"],
        "requests_per_s": len(trace) / ours["seconds"],
    }
    text = f"{name:8} {row['requests_per_s'] / 1e6:7.1f} M requests/s"
    found = [each[1] for each in tried if each[1]]
    if found:
        theirs = min(found, key=lambda figures: figures["seconds"])
        row["libcachesim_misses"] = round(theirs["miss_ratio"] * len(trace))
        row["libcachesim_requests_per_s"] = len(trace) / theirs["seconds"]
        row["ratio"] = row["requests_per_s"] / row["libcachesim_requests_per_s"]
        text += f", libCacheSim {row['libcachesim_requests_per_s'] / 1e6:5.1f}: {row['ratio']:5.1f} times"
        text += f" (misses {row['misses']:,} and {row['libcachesim_misses']:,})"
    print(text, flush=True)
    return row


def _ours(trace: Trace, name: str, capacity: int) -> dict[str, Any]:
    _ = trace.next_use, trace.is_access  # The future is in libCacheSim's file too.
    begun = time.perf_counter()
    result = simulate_cache(trace, capacity_bytes=capacity, policy=name)
    return {"seconds": time.perf_counter() - begun, "misses": result.misses}


def _theirs(file: Path, name: str, capacity: int) -> dict[str, Any] | None:
    """Return libCacheSim's figures, from a process of its own; None where it is not installed."""
    code = (
        "import importlib.util, json, sys, time\n"
        "if importlib.util.find_spec('libcachesim') is None: sys.exit()\n"
        "import libcachesim as their\n"
        f"cache = their.{THEIRS[name]}({capacity})\n"
        f"reader = their.TraceReader({str(file)!r}, their.TraceType.ORACLE_GENERAL_TRACE)\n"
        "begun = time.perf_counter()\n"
        "miss_ratio, _ = cache.process_trace(reader)\n"
        "print(json.dumps({'seconds': time.perf_counter() - begun, 'miss_ratio': miss_ratio}))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for line in reversed(ran.stdout.splitlines()):
        with contextlib.suppress(ValueError):
            figures: dict[str, Any] = json.loads(line)
            return figures
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
