"""Comparison of policies in one budget: bytes moved and seconds waited, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from accelera.policy import POLICIES
from accelera.policy._internal import needs
from accelera.simulator import Report, lower_bound, simulate
from accelera.trace import Trace
from accelera.views.facts import JsonView, MeasuredTrace, Per, WhatIf, facts_of
from accelera.views.wording import policy_label

USUAL_POLICIES = ("belady", "gdsf", "arc", "lru")
"""Policies that are compared where none are named: the ideal, two that adapt, and what most systems do."""
PLAIN = "lru"


@dataclass(frozen=True)
class PolicyRow:
    """Traffic of one policy; figures per unit, without the first load."""

    policy: str
    label: str
    needs_schedule: bool
    """Whether it has to know the accesses to come."""
    moved_bytes: int
    seconds: float
    """Arithmetic, and the waiting that room for everything would not have."""
    hit_ratio: float
    """Of all accesses of the trace."""
    evictions: int
    """In the whole trace."""


@dataclass(frozen=True)
class ComparisonView(JsonView):
    """Policies, the fewest bytes first; none where no schedule runs."""

    per: Per
    units: int
    policies: list[PolicyRow]
    first_load_bytes: int
    """Moved at any budget, in the whole trace; the figures are without it."""
    least_bytes: int | None
    """Per unit: no schedule moves fewer; None where that was not worked out."""
    notes: list[str] = field(default_factory=list)
    """Sentences that explain what might surprise a reader."""


def comparison_view(
    trace: Trace | MeasuredTrace,
    budget_bytes: int,
    what_if: WhatIf | None = None,
    policies: Sequence[str] | None = None,
    *,
    least_bytes: int | None = None,
) -> ComparisonView:
    """Replay ``trace`` in ``budget_bytes`` under each policy.

    ``moved_bytes * units + first_load_bytes`` is what ``simulate`` moves, up to rounding. With a budget below
    the floor no schedule runs, and no policy is listed. ``least_bytes`` is what ``least_per_unit`` found.
    """
    facts, what_if = facts_of(trace), what_if or WhatIf()
    rows = []
    if budget_bytes >= facts.floor_bytes:
        free = facts.resident(what_if)
        machine = what_if.at(max(budget_bytes, 1))
        for name in dict.fromkeys(policies or USUAL_POLICIES):
            report = simulate(facts.trace, machine, name, lookahead=what_if.lookahead)
            rows.append(_row(facts, report, free))
    rows.sort(key=lambda row: (row.moved_bytes, row.needs_schedule, row.seconds, row.policy != PLAIN))
    units, first = facts.units, facts.first_load_bytes(what_if.lookahead)
    return ComparisonView(units.per, units.count, rows, first, least_bytes, _notes(rows))


def least_per_unit(trace: Trace | MeasuredTrace, budget_bytes: int) -> int | None:
    """Return the least bytes per unit that any schedule moves beyond the first load.

    A linear program: a tenth of a second for 8,000 accesses, seconds for 60,000. None below the floor, where
    no schedule runs. See ``accelera.simulator.lower_bound``.
    """
    facts = facts_of(trace)
    if budget_bytes < facts.floor_bytes:
        return None
    if budget_bytes >= facts.peak_bytes:
        return 0
    return facts.per_unit(lower_bound(facts.trace, budget_bytes))


def needs_schedule(policy: str) -> bool:
    """Return whether a policy has to know the accesses to come; raises UnknownNameError."""
    return bool({"next_use", "next_read"} & set(needs(policy)))


def seconds_of(facts: MeasuredTrace, report: Report, free: Report) -> float:
    """Return the seconds per unit of a replay: arithmetic, and waiting beyond that of ``free``."""
    waiting = max(report.stall_s - free.stall_s, 0.0) / facts.units.count
    return facts.unit_seconds(report.hierarchy.compute) + waiting


def _row(facts: MeasuredTrace, report: Report, free: Report) -> PolicyRow:
    return PolicyRow(
        policy=report.policy,
        label=policy_label(report.policy),
        needs_schedule=needs_schedule(report.policy),
        moved_bytes=facts.per_unit(report.moved_bytes, report.lookahead),
        seconds=seconds_of(facts, report, free),
        hit_ratio=report.hit_ratio,
        evictions=report.evictions,
    )


def _notes(rows: Sequence[PolicyRow]) -> list[str]:
    notes = []
    offline = [row.label for row in rows if row.needs_schedule]
    if offline:
        verb = "needs" if len(offline) == 1 else "need"
        notes.append(
            f"{' and '.join(offline)} {verb} to know the schedule of accesses in advance, as a recorded or "
            "planned run does; the others only see what has happened."
        )
    by_name = {row.policy: row for row in rows}
    belady = by_name.get("belady")
    if belady is not None and rows[0].moved_bytes < belady.moved_bytes:
        notes.append(
            f"{rows[0].label} moves fewer bytes than Belady here: Belady makes the fewest misses for tensors "
            "of one size, which need not be the fewest bytes."
        )
    return notes


def known_policies() -> tuple[str, ...]:
    """Return the policies that can be compared: all that need no score of the caller's."""
    return tuple(name for name in POLICIES if name not in ("scored", "learned"))
