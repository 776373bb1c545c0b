"""Stays: the stretches over which a buffer must be kept lest its bytes are moved."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from accelera.simulator.moments import Moments
from accelera.trace import Kind, Trace


@dataclass(frozen=True, eq=False)
class Stays:
    """Where keeping a buffer saves a move; one row per stay, of at least one moment in between.

    A stay that ends in a read saves the fetch. Contents made here are written back once when they are
    dropped during any of the stays between their making and their end, and not at all when the buffer
    is freed or set anew: so ``version`` tells which stays are of the same contents.
    """

    size: NDArray[np.int64]
    """Bytes kept."""
    access: NDArray[np.int64]
    """Index of the access with which it begins."""
    begin: NDArray[np.int64]
    """First moment in between."""
    end: NDArray[np.int64]
    """The moment after the last one in between: that of the read, or the end of the trace."""
    fetch: NDArray[np.float64]
    """Fetches that keeping saves: 1, or 0 at the end of the trace."""
    version: NDArray[np.int64]
    """Which contents of which buffer."""
    write: NDArray[np.float64]
    """Write-backs that keeping saves, together with the other stays of its version: 0 or 1."""
    fixed_bytes: int
    """Bytes that are moved in any case: first reads, and what is saved on request."""

    def __len__(self) -> int:
        return len(self.size)

    def where(self, chosen: NDArray[np.bool_]) -> Stays:
        """Return the chosen stays."""
        columns = ("size", "access", "begin", "end", "fetch", "version", "write")
        return replace(self, **{name: getattr(self, name)[chosen] for name in columns})


def stays_of(trace: Trace, moments: Moments) -> Stays:
    """Return the stays of ``trace``."""
    rows = np.flatnonzero(np.isin(trace.kind, (Kind.READ, Kind.WRITE, Kind.FREE, Kind.SAVE)))
    rows = rows[np.argsort(trace.buffer[rows], kind="stable")]
    version, changed, saved, saved_bytes = _versions(trace, rows)
    lives = trace.kind[rows] != Kind.SAVE
    rows, version = rows[lives], version[lives]
    buffer, kind = trace.buffer[rows], trace.kind[rows]
    size = trace.size_bytes[buffer]
    last = np.append(buffer[1:] != buffer[:-1], True)[: len(rows)]
    read_next = np.append(kind[1:] == Kind.READ, False)[: len(rows)] & ~last
    access = np.cumsum(trace.is_access)[rows] - 1
    moment = moments.of_access[access] if len(moments) else access
    until = np.where(last, len(moments), np.append(moment[1:], 0)[: len(rows)])
    written = changed & ~saved
    keep = (kind != Kind.FREE) & (read_next | (last & written[version])) & (until - moment > 1)
    return Stays(
        size=size[keep],
        access=access[keep],
        begin=moment[keep] + 1,
        end=until[keep],
        fetch=read_next[keep].astype(np.float64),
        version=version[keep],
        write=written[version[keep]].astype(np.float64),
        fixed_bytes=int(size[_compulsory(buffer, kind)].sum()) + saved_bytes,
    )


def compulsory_reads(trace: Trace) -> NDArray[np.bool_]:
    """Return per access whether it reads what cannot be here yet, shape (accesses,)."""
    rows = np.flatnonzero(trace.is_access | (trace.kind == Kind.FREE))
    rows = rows[np.argsort(trace.buffer[rows], kind="stable")]
    found = np.zeros(len(trace), dtype=np.bool_)
    found[rows] = _compulsory(trace.buffer[rows], trace.kind[rows])
    return found[trace.is_access]


def _versions(
    trace: Trace, rows: NDArray[np.intp]
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_], int]:
    """Return the version per row; per version whether it was made here and is saved; the bytes saved.

    A free ends a version: what follows it is of another, a save that finds nothing included.
    """
    buffer, kind = trace.buffer[rows], trace.kind[rows]
    starts = (kind == Kind.WRITE) | _fresh(buffer, kind)
    version = np.cumsum(starts) - 1
    changed = kind[starts] == Kind.WRITE
    saved = np.zeros(len(changed), dtype=np.bool_)
    saved[version[kind == Kind.SAVE]] = True
    saved &= changed
    return version, changed, saved, int(trace.size_bytes[buffer[starts]][saved].sum())


def _compulsory(buffer: NDArray[np.int32], kind: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return per row whether it reads what cannot be here yet."""
    compulsory: NDArray[np.bool_] = _fresh(buffer, kind) & (kind == Kind.READ)
    return compulsory


def _fresh(buffer: NDArray[np.int32], kind: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return per row whether a life begins with it: it is the buffer's first, or comes after a free."""
    fresh = np.ones(len(buffer), dtype=np.bool_)
    fresh[1:] = (buffer[1:] != buffer[:-1]) | (kind[:-1] == Kind.FREE)
    return fresh
