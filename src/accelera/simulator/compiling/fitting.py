"""Whether a run fits a budget: as it is, by moving what it does not need just now, or not at all."""

from __future__ import annotations

from dataclasses import dataclass

from accelera.memory import Hierarchy
from accelera.simulator.compiling.figure import Figure
from accelera.simulator.report import Report
from accelera.simulator.simulate import simulate
from accelera.trace import Trace

FITS, OFFLOAD, INFEASIBLE = "fits", "fits with offload", "infeasible"
POLICY = "planner"
LOOKAHEAD = 8


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
class Fitter:
    """Answers for one trace on one machine; the run with room for everything is the yardstick."""

    trace: Trace
    hierarchy: Hierarchy
    peak_bytes: int
    floor_bytes: int
    bound: str

    def unlimited(self) -> Report:
        """Return the replay in a first tier that holds everything."""
        return replayed(self.trace, self.hierarchy, max(self.trace.footprint_bytes, 1))

    def fit(self, budget_bytes: int, unlimited: Report) -> Fit:
        """Return the verdict for ``budget_bytes``."""
        budget = Figure(budget_bytes, "B")
        if budget_bytes >= self.peak_bytes:
            return Fit(budget, FITS, Figure(0, "B"), Figure(0.0, "s"), Figure(None, ""), self.bound)
        if budget_bytes < self.floor_bytes:
            nothing = Figure(None, "B"), Figure(None, "s"), Figure(None, "")
            return Fit(budget, INFEASIBLE, *nothing, bound="memory capacity")
        report = replayed(self.trace, self.hierarchy, budget_bytes)
        added_s = report.total_s - unlimited.total_s
        return Fit(
            budget,
            OFFLOAD,
            Figure(max(report.moved_bytes - unlimited.moved_bytes, 0), "B"),
            Figure(max(added_s, 0.0), "s"),
            Figure(overlapped_share(report), ""),
            "link" if report.stall_s > report.compute_s else self.bound,
        )


def replayed(trace: Trace, hierarchy: Hierarchy, budget_bytes: int) -> Report:
    """Replay ``trace`` with ``budget_bytes`` in the first tier."""
    return simulate(trace, hierarchy.with_capacity(budget_bytes), POLICY, lookahead=LOOKAHEAD)


def overlapped_share(report: Report) -> float | None:
    """Return the share of the first link's busy time that nobody waited for; None when it was idle."""
    link = report.links[0]
    busy_s = max(link.towards_s, link.away_s) if report.hierarchy.tiers[1].duplex else 0.0
    busy_s = busy_s or link.towards_s + link.away_s
    return min(max(1 - report.stall_s / busy_s, 0.0), 1.0) if busy_s > 0 else None
