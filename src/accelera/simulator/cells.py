"""The replays of a sweep, one per policy and capacity: on threads here, or in pieces on an executor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import final

from numpy.typing import ArrayLike

from accelera.memory import Hierarchy
from accelera.simulator.progress import with_bar
from accelera.simulator.replay import simulate
from accelera.simulator.replayable import one_by_one
from accelera.simulator.report import Report
from accelera.trace import Trace

Cell = tuple[str, int]
"""A policy, and the bytes of the first tier."""

PIECES = 32
"""Into how many pieces an executor is given a sweep, at most: each takes the trace along."""

_NOTHING = Trace.from_arrays([], 0)


@final
@dataclass(frozen=True)
class Cells:
    """What all replays of a sweep have in common; pickled if its parts can be."""

    trace: Trace
    machine: Hierarchy
    scores: Mapping[str, ArrayLike]
    lookahead: int
    recompute: bool
    seed: int

    def replay(self, cell: Cell) -> Report:
        """Return what ``simulate`` finds for one policy and capacity."""
        name, size = cell
        return simulate(
            self.trace,
            self.machine.with_capacity(size),
            name,
            lookahead=self.lookahead,
            recompute=self.recompute,
            score=self.scores.get(name),
            seed=self.seed,
        )

    def replay_all(self, cells: Sequence[Cell]) -> list[Report]:
        """Return the reports of several cells without the trace, which whoever asked has."""
        return [replace(self.replay(cell), trace=_NOTHING) for cell in cells]

    def on_threads(self, cells: Sequence[Cell], threads: int | None, *, shown: bool) -> list[Report]:
        """Return the reports of ``cells`` in their order, replayed by threads of this process."""
        self.replay(cells[0])
        with ThreadPoolExecutor(threads) as pool:
            return list(with_bar(pool.map(self.replay, cells), len(cells), "sweep", shown=shown))

    def on_executor(self, cells: Sequence[Cell], executor: Executor, *, shown: bool) -> list[Report]:
        """Return the reports of ``cells`` in their order, replayed wherever ``executor`` runs its tasks.

        Raises what a replay or the executor raises; what has not begun by then is cancelled.
        """
        record = one_by_one(self.trace) if self.machine.sequential else self.trace
        count = min(PIECES, len(cells))
        futures = [executor.submit(self.replay_all, cells[first::count]) for first in range(count)]
        found: dict[Cell, Report] = {}
        try:
            for first, future in enumerate(with_bar(futures, count, "sweep", shown=shown)):
                reports = [replace(report, trace=record) for report in future.result()]
                found.update(zip(cells[first::count], reports, strict=True))
        finally:
            for future in futures:
                future.cancel()
        return [found[cell] for cell in cells]
