"""A plan for each of several budgets: what to keep, offload, compute again and drop, as replayed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from accelera.simulator.compiling.dataflow import Dataflow
from accelera.simulator.compiling.figure import Figure
from accelera.simulator.compiling.fitting import Yardstick
from accelera.simulator.compiling.planning import Choice, Planner
from accelera.simulator.compiling.rewriting import carried_out
from accelera.simulator.roofline import step_seconds
from accelera.trace import Occupancy, Trace

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
class BudgetPlan:
    """What to do to stay within one budget."""

    budget: Figure
    feasible: bool
    peak: Figure
    """Physical peak of the plan, replayed with its frees; not what it says it saves."""
    kept: Figure
    """Bytes alive at the original peak that stay there."""
    offloaded: Figure
    """Bytes moved away, each move counted."""
    recomputed: Figure
    """Bytes made again."""
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
    yardstick: Yardstick

    def plans(self, budgets: Sequence[int]) -> tuple[BudgetPlan, ...]:
        """Return a plan per budget, in the order given."""
        planners = [self._planner(recompute) for recompute in (True, False)]
        found = {budget: self._plan(budget, planners) for budget in sorted(set(budgets), reverse=True)}
        return tuple(found[budget] for budget in budgets)

    def _planner(self, recompute: bool) -> Planner:
        machine = self.yardstick.hierarchy
        seconds = step_seconds(self.trace, machine.compute)
        return Planner(self.trace, self.flow, self.held, seconds, machine, recompute)

    def _plan(self, budget: int, planners: Sequence[Planner]) -> BudgetPlan:
        """Return the quickest of the plans with and without recomputation that reach the budget."""
        reached = [planner.lower_to(budget) for planner in planners]
        candidates = [planner for planner, good in zip(planners, reached, strict=True) if good]
        if not any(choice.how == "recompute" for choice in planners[0].choices):
            candidates = candidates[:1]
        if not candidates:
            lowest = min(planners, key=lambda each: each.peak_bytes)
            return self._described(budget, lowest.choices, carried_out(self.trace, self.flow, lowest.choices))
        tried = []
        for planner in candidates:
            replay = carried_out(self.trace, self.flow, planner.choices)
            report, added_s = self.yardstick.quickest(replay.trace, budget)
            hidden = self.yardstick.overlapped_share(report, added_s)
            tried.append((added_s, hidden, planner.choices, replay))
        added_s, hidden, choices, replay = min(tried, key=lambda each: each[0])
        return self._described(budget, choices, replay, added_s, hidden)

    def _described(
        self,
        budget: int,
        choices: Sequence[Choice],
        replay: Occupancy,
        added_s: float | None = None,
        hidden: float | None = None,
    ) -> BudgetPlan:
        moved: Counter[str] = Counter()
        for choice in choices:
            moved[choice.how] += self.flow.values[choice.gap.value].nbytes
        return BudgetPlan(
            budget=Figure(budget, "B"),
            feasible=added_s is not None and replay.peak_bytes <= budget,
            peak=Figure(replay.peak_bytes, "B"),
            kept=Figure(self._kept_bytes(choices), "B"),
            offloaded=Figure(moved["offload"], "B"),
            recomputed=Figure(moved["recompute"], "B"),
            dropped=Figure(moved["drop"], "B"),
            recompute_time=Figure(self._again_s(choices), "s"),
            total=Figure(None if added_s is None else self.yardstick.compute_s + added_s, "s"),
            added=Figure(added_s, "s"),
            overlapped=Figure(hidden, ""),
            tensors=self._listed(choices),
        )

    def _kept_bytes(self, choices: Sequence[Choice]) -> int:
        peak, values = self.held.peak_event, self.flow.values
        away = (each.gap for each in choices if each.gap.start <= peak < each.gap.end)
        return self.held.peak_bytes - sum(values[gap.value].nbytes for gap in away)

    def _again_s(self, choices: Sequence[Choice]) -> float:
        seconds = step_seconds(self.trace, self.yardstick.hierarchy.compute)
        return sum(float(seconds[step]) for choice in choices for step in choice.steps)

    def _listed(self, choices: Sequence[Choice]) -> tuple[PlannedTensor, ...]:
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
