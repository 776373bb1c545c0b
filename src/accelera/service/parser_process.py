"""Parser process: forks a child with caps of memory and time per upload, so that a bomb costs that child.

``python -m accelera.service.parser_process SOCKET`` imports what parsing needs once, and then forks per
request, so that a child begins in milliseconds and shares nothing with the child of another upload. It runs
one thread, is given neither the service's token nor its database, and reads and writes files only by the
descriptors that ``UploadParser`` sends with a request. Nothing of an upload is executed: no format that is
read can hold code.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import json
import os
import resource
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

from accelera.errors import AcceleraError, TraceFormatError
from accelera.trace import Trace, read_trace
from accelera.trace._internal import FORMATS as _ALL_FORMATS
from accelera.trace._internal import content_hash

FORMATS = ("parquet", "csv", "json", "torch_snapshot", "libcachesim_csv", "oracle_general")
"""Formats that are read, by their names in ``read_trace``."""
MEMORY_BYTES = 1536 << 20
"""Address space of a child, beyond what the parser process has mapped before the fork."""
SECONDS = 30
"""Limit of a child's processor time; its wall time may be twice as long."""
REQUEST_BYTES = 4096
BEGUN = b" "
"""First byte of a child's reply: when nothing follows, the child was killed, not the parser process."""
_OUT_BYTES = 1 << 30
"""Largest Parquet file that a child may write."""
_OPEN_FILES = 64
_COLUMNS = 1000
_HEADER_BYTES = 1 << 20
_MESSAGE_CHARACTERS = 2000
_CORES = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "ARROW_IO_THREADS": "1"}
_ALLOCATORS = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "MALLOC_ARENA_MAX": "2",
}
ENVIRONMENT = {**_CORES, **_ALLOCATORS}
"""Environment of the parser process: one thread, so that forks are safe; allocators that obey limits."""


def main(control: socket.socket) -> None:
    """Fork a child for each request until the service closes its end; then end with all children."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps ended children
    _import_readers()
    gc.collect()
    gc.freeze()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, REQUEST_BYTES, 3)
        if not message:
            os.killpg(0, signal.SIGKILL)
        _fork(control, message, descriptors)
        for each in descriptors:
            os.close(each)


def _import_readers() -> None:
    for name in FORMATS:
        _ALL_FORMATS[name].load()
    for name in ("pandas", "pyarrow.dataset", "pyarrow.parquet"):
        importlib.import_module(name)


def _fork(control: socket.socket, message: bytes, descriptors: list[int]) -> None:
    upload, out, reply = descriptors
    try:
        child = os.fork()
    except OSError as error:
        os.write(reply, json.dumps({"busy": str(error)}).encode())
        return
    if not child:
        control.close()
        _run_child(json.loads(message), upload, out, reply)


def _run_child(request: dict[str, Any], upload: int, out: int, reply: int) -> NoReturn:
    try:
        os.write(reply, BEGUN)
        _set_limits()
        content = _reply_to(request, f"/proc/self/fd/{upload}", f"/proc/self/fd/{out}")
        os.write(reply, json.dumps(content).encode())
    finally:
        os._exit(0)


def _set_limits() -> None:
    """Set the limits of this process; when memory is short, the kernel also kills it first."""
    gc.disable()  # the child ends soon, and collecting millions of cells takes longer than reading them
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    Path("/proc/self/oom_score_adj").write_text("1000")
    signal.setitimer(signal.ITIMER_REAL, 2 * SECONDS)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for kind, most in (
        (resource.RLIMIT_AS, mapped + MEMORY_BYTES),
        (resource.RLIMIT_CPU, SECONDS),
        (resource.RLIMIT_FSIZE, _OUT_BYTES),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))


def _reply_to(request: dict[str, Any], upload: str, out: str) -> dict[str, Any]:
    """Return the facts of a trace, or what is wrong with the upload."""
    try:
        return _parse(request, upload, out)
    except (AcceleraError, UnicodeDecodeError) as error:
        return {"refused": str(error).replace(upload, "the upload")[:_MESSAGE_CHARACTERS]}
    except MemoryError:
        return {"memory": True}
    except Exception as error:  # a fault of the reader; the upload is refused all the same
        return {"fault": traceback.format_exc()[-_MESSAGE_CHARACTERS:], "kind": type(error).__name__}


def _parse(request: dict[str, Any], upload: str, out: str) -> dict[str, Any]:
    most = request["most_accesses"]
    if request["format"] == "parquet":
        rows = _parquet_rows(upload)
        if rows > 2 * most:  # an access and a free of each
            return {"rows": rows, "most_rows": 2 * most}
    if request["format"].endswith("csv"):
        _check_columns(upload)
    trace = read_trace(upload, request["format"])
    if trace.access_count > most:
        return {"accesses": trace.access_count}
    if trace.meta.get("source") == Path(upload).name:
        trace = dataclasses.replace(trace, meta={**trace.meta, "source": request["name"]})
    _ALL_FORMATS["parquet"].load().write(trace, Path(out))
    return {"facts": facts_of(trace)}


def facts_of(trace: Trace) -> dict[str, Any]:
    """Return the columns of a stored trace: digest, model type, counts and bytes."""
    return {
        "digest": content_hash(trace),
        "model_type": trace.model_type[:100],
        "accesses": trace.access_count,
        "buffers": trace.buffer_count,
        "steps": trace.step_count,
        "footprint_bytes": int(trace.footprint_bytes),
    }


def _parquet_rows(upload: str) -> int:
    """Return the number of rows in a file's metadata; 0 when the file is damaged."""
    from pyarrow import ArrowException, parquet

    try:
        return int(parquet.read_metadata(upload).num_rows)
    except MemoryError:
        raise
    except (ArrowException, OSError, ValueError):
        return 0


def _check_columns(upload: str) -> None:
    """Raise TraceFormatError for a table of too many columns, which a reader needs minutes to refuse."""
    with Path(upload).open("rb") as file:
        columns = file.readline(_HEADER_BYTES).count(b",") + 1
    if columns > _COLUMNS:
        raise TraceFormatError(
            f"[read_trace] {upload}: the first line has {columns:,} cells or more, of {_COLUMNS:,} at most"
        )


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
