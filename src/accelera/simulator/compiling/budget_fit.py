"""Fit of a run into memory budgets: the verdict for each, and the plan that reaches it, as replayed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from accelera.memory import Hierarchy
from accelera.simulator.compiling.dataflow import Dataflow
from accelera.simulator.compiling.figure import Figure
from accelera.simulator.compiling.memory_plan import GapChoice, GapPlanner, apply_plan
from accelera.simulator.replay import simulate, step_seconds
from accelera.simulator.report import Report
from accelera.trace import Occupancy, Trace

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
    """The bottleneck: ``link`` when waiting for transfers takes longest, else that of the unbounded run."""


@dataclass(frozen=True)
class Baseline:
    """The run with room for everything, against which budgets are measured.

    Both runs begin with nothing in the first tier, so the time of the first fetch of weights cancels out.
    """

    hierarchy: Hierarchy
    reports: tuple[Report, ...]
    """One per look-ahead of ``LOOKAHEADS``."""

    @classmethod
    def of(cls, trace: Trace, hierarchy: Hierarchy) -> Baseline:
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
            max(within_budget.total_s - unbounded.total_s, 0.0)
            for within_budget, unbounded in zip(replays, self.reports, strict=True)
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
    """Verdicts on memory budgets for one trace on one machine."""

    trace: Trace
    baseline: Baseline
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
        report, added_s = self.baseline.quickest(self.trace, budget_bytes)
        return Fit(
            budget,
            OFFLOAD,
            Figure(self.baseline.traffic_bytes(report), "B"),
            Figure(added_s, "s"),
            Figure(self.baseline.overlapped_share(report, added_s), ""),
            "link" if added_s > self.baseline.compute_s else self.bound,
        )


def _replays(trace: Trace, hierarchy: Hierarchy) -> tuple[Report, ...]:
    return tuple(simulate(trace, hierarchy, POLICY, lookahead=steps) for steps in LOOKAHEADS)


SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
"""Budgets by default, as shares of the peak."""
MOST_LISTED = 20


@dataclass(frozen=True)
class PlannedTensor:
    """One value and what happens to it between two uses."""

    name: str
    role: str
    how: str
    """``offload``, ``recompute`` or ``drop``."""
    size: Figure
    before_op: str
    """The operation that needs it again; ``""`` for none."""


@dataclass(frozen=True)
class TracedBudgetPlan:
    """How to stay within one budget."""

    budget: Figure
    feasible: bool
    peak: Figure
    """Peak of the plan, measured by replaying it with its frees."""
    kept: Figure
    """Bytes alive at the original peak that stay there."""
    offloaded: Figure
    """Bytes moved away, each move counted."""
    recomputed: Figure
    """Bytes computed again."""
    dropped: Figure
    """Bytes dropped before the program does so itself."""
    recompute_time: Figure
    total: Figure
    """Seconds of the step with it; None where the plan does not reach the budget."""
    added: Figure
    """Seconds that it takes longer: waiting, and computing again."""
    overlapped: Figure
    tensors: tuple[PlannedTensor, ...]
    """The largest choices."""


@dataclass(frozen=True)
class BudgetPlanner:
    """Plans for falling budgets of one trace."""

    trace: Trace
    flow: Dataflow
    held: Occupancy
    baseline: Baseline

    def plans(self, budgets: Sequence[int]) -> tuple[TracedBudgetPlan, ...]:
        """Return a plan per budget, in the order given."""
        planners = [self._planner(recompute) for recompute in (True, False)]
        found = {budget: self._plan(budget, planners) for budget in sorted(set(budgets), reverse=True)}
        return tuple(found[budget] for budget in budgets)

    def _planner(self, recompute: bool) -> GapPlanner:
        machine = self.baseline.hierarchy
        seconds = step_seconds(self.trace, machine.compute)
        return GapPlanner(self.trace, self.flow, self.held, seconds, machine, recompute)

    def _plan(self, budget: int, planners: Sequence[GapPlanner]) -> TracedBudgetPlan:
        """Return the quickest of the plans with and without recomputation that reach the budget."""
        reached = [planner.lower_to(budget) for planner in planners]
        candidates = [planner for planner, good in zip(planners, reached, strict=True) if good]
        if not any(choice.how == "recompute" for choice in planners[0].choices):
            candidates = candidates[:1]
        if not candidates:
            lowest = min(planners, key=lambda each: each.peak_bytes)
            return self._describe(budget, lowest.choices, apply_plan(self.trace, self.flow, lowest.choices))
        tried = []
        for planner in candidates:
            replay = apply_plan(self.trace, self.flow, planner.choices)
            report, added_s = self.baseline.quickest(replay.trace, budget)
            hidden = self.baseline.overlapped_share(report, added_s)
            tried.append((added_s, hidden, planner.choices, replay))
        added_s, hidden, choices, replay = min(tried, key=lambda each: each[0])
        return self._describe(budget, choices, replay, added_s, hidden)

    def _describe(
        self,
        budget: int,
        choices: Sequence[GapChoice],
        replay: Occupancy,
        added_s: float | None = None,
        hidden: float | None = None,
    ) -> TracedBudgetPlan:
        moved: Counter[str] = Counter()
        for choice in choices:
            moved[choice.how] += self.flow.values[choice.gap.value].nbytes
        return TracedBudgetPlan(
            budget=Figure(budget, "B"),
            feasible=added_s is not None and replay.peak_bytes <= budget,
            peak=Figure(replay.peak_bytes, "B"),
            kept=Figure(self._kept_bytes(choices), "B"),
            offloaded=Figure(moved["offload"], "B"),
            recomputed=Figure(moved["recompute"], "B"),
            dropped=Figure(moved["drop"], "B"),
            recompute_time=Figure(self._recompute_s(choices), "s"),
            total=Figure(None if added_s is None else self.baseline.compute_s + added_s, "s"),
            added=Figure(added_s, "s"),
            overlapped=Figure(hidden, ""),
            tensors=self._largest_choices(choices),
        )

    def _kept_bytes(self, choices: Sequence[GapChoice]) -> int:
        peak, values = self.held.peak_event, self.flow.values
        away = (each.gap for each in choices if each.gap.start <= peak < each.gap.end)
        return self.held.peak_bytes - sum(values[gap.value].nbytes for gap in away)

    def _recompute_s(self, choices: Sequence[GapChoice]) -> float:
        seconds = step_seconds(self.trace, self.baseline.hierarchy.compute)
        return sum(float(seconds[step]) for choice in choices for step in choice.steps)

    def _largest_choices(self, choices: Sequence[GapChoice]) -> tuple[PlannedTensor, ...]:
        values, trace = self.flow.values, self.trace
        largest = sorted(choices, key=lambda each: -values[each.gap.value].nbytes)[:MOST_LISTED]
        return tuple(
            PlannedTensor(
                trace.names[values[each.gap.value].buffer],
                trace.roles[values[each.gap.value].buffer],
                each.how,
                Figure(values[each.gap.value].nbytes, "B"),
                trace.ops[each.gap.next_step] if each.gap.next_step >= 0 else "",
            )
            for each in largest
        )
