"""The linear program behind the lower bound: which share of each stay is kept in the room there is.

    minimise    sum of dropped bytes x fetch  +  sum over versions of written bytes
    where       written >= dropped            for each stay of the version
                sum of kept bytes <= room     at each moment

Kept bytes flow from moment to moment, so that every constraint has only the stays that begin or end
there. Whole buffers are a special case of shares, so no schedule can beat the optimum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accelera.simulator.stays import Stays

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Flow:
    """The least traffic, and who is dropped for it."""

    moved_bytes: float
    """No schedule moves less, in bytes; what is moved in any case is not in it."""
    slope: float
    """How that changes with each byte of room at every moment: a bound for other rooms too. Not positive."""
    dropped: Floats
    """Share of each stay that is not kept, 0 to 1, shape (stays,)."""


def least_flow(stays: Stays, room: NDArray[np.int64]) -> Flow:
    """Return the least traffic of ``stays`` when ``room`` bytes are free at each moment, shape (moments,).

    ``fetch`` and ``write`` of a stay may be parts of moves; ``write`` is that of its version.
    """
    dropped = np.zeros(len(stays))
    tight = np.flatnonzero(kept_bytes(stays, len(room)) > room)
    begin, end = np.searchsorted(tight, stays.begin), np.searchsorted(tight, stays.end)
    matters = begin < end
    if not matters.any():
        return Flow(0.0, 0.0, dropped)
    edges, ends = np.unique(np.concatenate([begin[matters], end[matters]]), return_inverse=True)
    begin, end = np.split(ends, 2)
    program = _Program(stays.where(matters), begin, end, np.minimum.reduceat(room[tight], edges[:-1]))
    moved, slope, dropped[matters] = program.solve()
    return Flow(moved, slope, dropped)


def kept_bytes(stays: Stays, moments: int) -> Floats:
    """Return per moment the bytes of all stays that span it."""
    change = np.bincount(stays.begin, stays.size, moments + 1) - np.bincount(
        stays.end, stays.size, moments + 1
    )
    kept: Floats = np.cumsum(change)[:-1]
    return kept


class _Program:
    """Variables: kept bytes per stay, kept bytes per moment, written bytes per version of several stays."""

    def __init__(
        self, stays: Stays, begin: NDArray[np.intp], end: NDArray[np.intp], room: NDArray[np.int64]
    ) -> None:
        versions, version, count = np.unique(stays.version, return_inverse=True, return_counts=True)
        shared = (stays.write > 0) & (count[version] > 1)
        self.unit = float(stays.size.mean())
        self.size = stays.size / self.unit
        self.drop_cost = stays.fetch + np.where(shared, 0.0, stays.write)
        write_cost, most = np.zeros(len(versions)), np.zeros(len(versions))
        write_cost[version[shared]] = stays.write[shared]
        most[version[shared]] = self.size[shared]
        self.cost = np.concatenate([-self.drop_cost, np.zeros(len(room)), write_cost])
        self.upper = np.concatenate([self.size, room / self.unit, most])
        self.flow = self._flow_rows(begin, end, len(room))
        self.writes = self._write_rows(np.flatnonzero(shared), version[shared] + len(stays) + len(room))
        self.least_written = -self.size[shared]

    def solve(self) -> tuple[float, float, Floats]:
        """Return the bytes moved at least, their change with room, and the dropped share of each stay."""
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

    def _flow_rows(self, begin: NDArray[np.intp], end: NDArray[np.intp], moments: int) -> Any:
        """Kept at a moment - kept at the one before - stays that begin + stays that ended = 0."""
        stay, moment = np.arange(len(begin)), np.arange(moments)
        ended = end < moments
        entries = [
            (begin, stay, -1.0),
            (end[ended], stay[ended], 1.0),
            (moment, moment + len(begin), 1.0),
            (moment[1:], moment[:-1] + len(begin), -1.0),
        ]
        return _sparse(entries, (moments, len(self.cost)))

    def _write_rows(self, stay: NDArray[np.intp], written: NDArray[np.intp]) -> Any:
        """- kept - written <= - size."""
        row = np.arange(len(stay))
        return _sparse([(row, stay, -1.0), (row, written, -1.0)], (len(stay), len(self.cost)))


def _sparse(entries: list[tuple[NDArray[np.intp], NDArray[np.intp], float]], shape: tuple[int, int]) -> Any:
    from scipy.sparse import csr_matrix

    rows, columns = (np.concatenate([entry[axis] for entry in entries]) for axis in (0, 1))
    values = np.concatenate([np.full(len(row), value) for row, _, value in entries])
    return csr_matrix((values, (rows, columns)), shape=shape)
