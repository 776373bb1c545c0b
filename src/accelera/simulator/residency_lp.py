"""Linear program behind the lower bound: the share of each reuse interval that is kept in memory.

A reuse interval is the stretch between two accesses over which keeping a buffer saves a move.

    minimise    sum of dropped bytes x fetch  +  sum over versions of written bytes
    where       written >= dropped            for each interval of the version
                sum of kept bytes <= room     at each time step

Kept bytes flow from time step to time step, so that every constraint has only the intervals that begin or
end there. Whole buffers are a special case of shares, so no schedule can beat the optimum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accelera.simulator.time_steps import TimeSteps
from accelera.trace import Kind, Trace


@dataclass(frozen=True, eq=False)
class ReuseIntervals:
    """Where keeping a buffer saves a move; one row per interval, of at least one time step in between.

    An interval that ends in a read saves the fetch. Contents made here are written back once when they are
    dropped during any of the intervals between their making and their end, and not at all when the buffer
    is freed or overwritten: so ``version`` tells which intervals are of the same contents.
    """

    size: NDArray[np.int64]
    """Bytes kept."""
    access: NDArray[np.int64]
    """Index of the access with which it begins."""
    begin: NDArray[np.int64]
    """First time step in between."""
    end: NDArray[np.int64]
    """The time step after the last one in between: that of the read, or the end of the trace."""
    fetch: NDArray[np.float64]
    """Fetches that keeping saves: 1, or 0 at the end of the trace."""
    version: NDArray[np.int64]
    """Which contents of which buffer."""
    write: NDArray[np.float64]
    """Write-backs that keeping saves, together with the other intervals of its version: 0 or 1."""
    fixed_bytes: int
    """Bytes that are moved in any case: first reads, and what is saved on request."""

    def __len__(self) -> int:
        return len(self.size)

    def where(self, chosen: NDArray[np.bool_]) -> ReuseIntervals:
        """Return the chosen intervals."""
        columns = ("size", "access", "begin", "end", "fetch", "version", "write")
        return replace(self, **{name: getattr(self, name)[chosen] for name in columns})


def reuse_intervals(trace: Trace, time_steps: TimeSteps) -> ReuseIntervals:
    """Return the intervals of ``trace``."""
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
    time_step = time_steps.of_access[access] if len(time_steps) else access
    until = np.where(last, len(time_steps), np.append(time_step[1:], 0)[: len(rows)])
    written = changed & ~saved
    keep = (kind != Kind.FREE) & (read_next | (last & written[version])) & (until - time_step > 1)
    return ReuseIntervals(
        size=size[keep],
        access=access[keep],
        begin=time_step[keep] + 1,
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


Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Flow:
    """The least traffic, and who is dropped for it."""

    moved_bytes: float
    """No schedule moves less, in bytes; what is moved in any case is not in it."""
    slope: float
    """Change of that per byte of room at every time step, never positive: a bound for other rooms too."""
    dropped: Floats
    """Share of each interval that is not kept, 0 to 1, shape (intervals,)."""


def least_flow(intervals: ReuseIntervals, room: NDArray[np.int64]) -> Flow:
    """Return the least traffic of ``intervals`` with ``room`` bytes free per time step, shape (time steps,).

    ``fetch`` and ``write`` of an interval may be parts of moves; ``write`` is that of its version.
    """
    dropped = np.zeros(len(intervals))
    tight = np.flatnonzero(kept_bytes(intervals, len(room)) > room)
    begin, end = np.searchsorted(tight, intervals.begin), np.searchsorted(tight, intervals.end)
    matters = begin < end
    if not matters.any():
        return Flow(0.0, 0.0, dropped)
    edges, ends = np.unique(np.concatenate([begin[matters], end[matters]]), return_inverse=True)
    begin, end = np.split(ends, 2)
    program = _ResidencyProgram(
        intervals.where(matters), begin, end, np.minimum.reduceat(room[tight], edges[:-1])
    )
    moved, slope, dropped[matters] = program.solve()
    return Flow(moved, slope, dropped)


def kept_bytes(intervals: ReuseIntervals, time_steps: int) -> Floats:
    """Return per time step the bytes of all intervals that span it."""
    change = np.bincount(intervals.begin, intervals.size, time_steps + 1) - np.bincount(
        intervals.end, intervals.size, time_steps + 1
    )
    kept: Floats = np.cumsum(change)[:-1]
    return kept


class _ResidencyProgram:
    """Variables: bytes kept per interval and time step, bytes written per version of several intervals."""

    def __init__(
        self,
        intervals: ReuseIntervals,
        begin: NDArray[np.intp],
        end: NDArray[np.intp],
        room: NDArray[np.int64],
    ) -> None:
        versions, version, count = np.unique(intervals.version, return_inverse=True, return_counts=True)
        shared = (intervals.write > 0) & (count[version] > 1)
        self.unit = float(intervals.size.mean())
        self.size = intervals.size / self.unit
        self.drop_cost = intervals.fetch + np.where(shared, 0.0, intervals.write)
        write_cost, most = np.zeros(len(versions)), np.zeros(len(versions))
        write_cost[version[shared]] = intervals.write[shared]
        most[version[shared]] = self.size[shared]
        self.cost = np.concatenate([-self.drop_cost, np.zeros(len(room)), write_cost])
        self.upper = np.concatenate([self.size, room / self.unit, most])
        self.flow = self._flow_rows(begin, end, len(room))
        self.writes = self._write_rows(np.flatnonzero(shared), version[shared] + len(intervals) + len(room))
        self.least_written = -self.size[shared]

    def solve(self) -> tuple[float, float, Floats]:
        """Return the bytes moved at least, their change with room, and the dropped share of each interval."""
        from scipy.optimize import linprog

        found = linprog(
            self.cost,
            A_eq=self.flow,
            b_eq=np.zeros(self.flow.shape[0]),
            A_ub=self.writes,
            b_ub=self.least_written,
            bounds=np.stack([np.zeros(len(self.upper)), self.upper], axis=1),
            method="highs-ds",
        )
        assert found.success, f"keeping nothing is feasible, yet the solver says: {found.message}"
        kept = found.x[: len(self.size)] / np.maximum(self.size, 1e-300)
        moved, slope = self._proven(found.eqlin.marginals, np.minimum(found.ineqlin.marginals, 0.0))
        return moved, slope, 1.0 - np.clip(kept, 0.0, 1.0)

    def _proven(self, flow_price: Floats, write_price: Floats) -> tuple[float, float]:
        """Return what weak duality proves from the prices, whatever the solver's tolerances were."""
        reduced = self.cost - self.flow.T @ flow_price - self.writes.T @ write_price
        gains = np.minimum(reduced, 0.0)
        rooms = slice(len(self.size), len(self.size) + self.flow.shape[0])
        moved = self.drop_cost @ self.size + gains @ self.upper + write_price @ self.least_written
        return float(moved) * self.unit, float(gains[rooms].sum())

    def _flow_rows(self, begin: NDArray[np.intp], end: NDArray[np.intp], time_steps: int) -> Any:
        """Kept at a time step - kept at the one before - intervals that begin + intervals that ended = 0."""
        interval, time_step = np.arange(len(begin)), np.arange(time_steps)
        ended = end < time_steps
        entries = [
            (begin, interval, -1.0),
            (end[ended], interval[ended], 1.0),
            (time_step, time_step + len(begin), 1.0),
            (time_step[1:], time_step[:-1] + len(begin), -1.0),
        ]
        return _sparse(entries, (time_steps, len(self.cost)))

    def _write_rows(self, interval: NDArray[np.intp], written: NDArray[np.intp]) -> Any:
        """- kept - written <= - size."""
        row = np.arange(len(interval))
        return _sparse([(row, interval, -1.0), (row, written, -1.0)], (len(interval), len(self.cost)))


def _sparse(entries: list[tuple[NDArray[np.intp], NDArray[np.intp], float]], shape: tuple[int, int]) -> Any:
    from scipy.sparse import csr_matrix

    rows, columns = (np.concatenate([entry[axis] for entry in entries]) for axis in (0, 1))
    values = np.concatenate([np.full(len(row), value) for row, _, value in entries])
    return csr_matrix((values, (rows, columns)), shape=shape)
