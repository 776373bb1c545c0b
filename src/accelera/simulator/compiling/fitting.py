"""Whether a run fits a budget: as it is, by moving what it does not need just now, or not at all."""

from __future__ import annotations

from dataclasses import dataclass

from accelera.memory import Hierarchy
from accelera.simulator.compiling.figure import Figure
from accelera.simulator.replay import simulate
from accelera.simulator.report import Report
from accelera.trace import Trace

FITS, OFFLOAD, INFEASIBLE = "fits", "fits with offload", "infeasible"
POLICY = "planner"
LOOKAHEADS = (0, 2, 8)
"""Steps fetched ahead: more hides transfers, and needs memory that a tight budget lacks."""


@dataclass(frozen=True)
class Fit:
    """The verdict for one budget."""

    budget: Figure
    verdict: str
    """``fits``, ``fits with offload`` or ``infeasible``."""
    traffic: Figure
    """Bytes moved over the link because of the budget."""
    added: Figure
    """Seconds that a step takes longer."""
    overlapped: Figure
    """Share of the transfers' time hidden behind computing; None without transfers."""
    bound: str
    """What holds the run up: ``link`` when waiting for transfers is the largest part, else as without."""


@dataclass(frozen=True)
class Yardstick:
    """The run with room for everything, against which budgets are measured.

    Both runs begin with nothing in the first tier, so that what the first fetch of weights takes cancels.
    """

    hierarchy: Hierarchy
    reports: tuple[Report, ...]
    """One per look-ahead of ``LOOKAHEADS``."""

    @classmethod
    def of(cls, trace: Trace, hierarchy: Hierarchy) -> Yardstick:
        """Replay ``trace`` with room for everything."""
        return cls(hierarchy, _replays(trace, hierarchy.with_capacity(max(trace.footprint_bytes, 1))))

    @property
    def compute_s(self) -> float:
        """Seconds of computing alone."""
        return self.reports[0].compute_s

    def quickest(self, trace: Trace, budget_bytes: int) -> tuple[Report, float]:
        """Replay within a budget; return the report of the best look-ahead, and the seconds it adds."""
        replays = _replays(trace, self.hierarchy.with_capacity(budget_bytes))
        added = [
            max(mine.total_s - all_.total_s, 0.0) for mine, all_ in zip(replays, self.reports, strict=True)
        ]
        best = added.index(min(added))
        return replays[best], added[best]

    def traffic_bytes(self, report: Report) -> int:
        """Return the bytes that a replay moves and the run with room for everything does not."""
        return max(report.moved_bytes - self.reports[0].moved_bytes, 0)

    def overlapped_share(self, report: Report, added_s: float) -> float | None:
        """Return the share of its own transfers' time that was hidden; None without such transfers."""
        first, extra = self.reports[0].links[0], report.links[0]
        towards_s, away_s = extra.towards_s - first.towards_s, extra.away_s - first.away_s
        busy_s = max(towards_s, away_s) if self.hierarchy.tiers[1].duplex else towards_s + away_s
        return min(max(1 - added_s / busy_s, 0.0), 1.0) if busy_s > 0 else None


@dataclass(frozen=True)
class Fitter:
    """Answers for one trace on one machine."""

    trace: Trace
    yardstick: Yardstick
    peak_bytes: int
    floor_bytes: int
    bound: str

    def fit(self, budget_bytes: int) -> Fit:
        """Return the verdict for ``budget_bytes``."""
        budget = Figure(budget_bytes, "B")
        if budget_bytes >= self.peak_bytes:
            return Fit(budget, FITS, Figure(0, "B"), Figure(0.0, "s"), Figure(None, ""), self.bound)
        if budget_bytes < self.floor_bytes:
            nothing = Figure(None, "B"), Figure(None, "s"), Figure(None, "")
            return Fit(budget, INFEASIBLE, *nothing, bound="memory capacity")
        report, added_s = self.yardstick.quickest(self.trace, budget_bytes)
        return Fit(
            budget,
            OFFLOAD,
            Figure(self.yardstick.traffic_bytes(report), "B"),
            Figure(added_s, "s"),
            Figure(self.yardstick.overlapped_share(report, added_s), ""),
            "link" if added_s > self.yardstick.compute_s else self.bound,
        )


def _replays(trace: Trace, hierarchy: Hierarchy) -> tuple[Report, ...]:
    return tuple(simulate(trace, hierarchy, POLICY, lookahead=steps) for steps in LOOKAHEADS)
