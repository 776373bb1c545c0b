"""View of the page Fit: the verdict, the occupancy of the memory, and the comparison of policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from accelera.simulator import simulate
from accelera.trace import Trace
from accelera.views.comparison import PLAIN, ComparisonView, PolicyRow, comparison_view, seconds_of
from accelera.views.facts import JsonView, MeasuredTrace, WhatIf, facts_of
from accelera.views.occupancy import OccupancyView, occupancy_view
from accelera.views.verdict import LoadedAhead, Verdict, headline_of, sentence_of

LOOKAHEADS = (1, 2, 4, 8, 16)
"""Tried for the time that loading ahead would save."""
_WORTH_MENTIONING = 0.97


@dataclass(frozen=True)
class FitView(JsonView):
    """Fit of a trace in a budget, and its course there."""

    verdict: Verdict
    occupancy: OccupancyView
    comparison: ComparisonView


def fit_view(
    trace: Trace | MeasuredTrace,
    budget_bytes: int,
    what_if: WhatIf | None = None,
    policies: Sequence[str] | None = None,
    *,
    lower_bound_bytes: int | None = None,
) -> FitView:
    """Return verdict, occupancy and comparison of ``trace`` in ``budget_bytes``.

    Parameters
    ----------
    what_if
        The machine; a card of the class ``gpu-24gb`` by default.
    policies
        Names that are compared; four usual ones by default.
    lower_bound_bytes
        Result of ``least_per_unit``, which the sentences then mention.

    Raises UnknownNameError for a policy or machine, ValueError for a policy that needs a score.

    >>> from accelera.simulator import generate_synthetic_trace
    >>> found = fit_view(generate_synthetic_trace(num_layers=2), 10**8)
    >>> found.verdict.headline
    'Running a transformer of 38.7M parameters needs 344 MB. You are 244 MB short.'
    """
    facts, what_if = facts_of(trace), what_if or WhatIf()
    compared = comparison_view(facts, budget_bytes, what_if, policies, least_bytes=lower_bound_bytes)
    return FitView(
        verdict_of(facts, budget_bytes, what_if, compared), occupancy_view(facts, budget_bytes), compared
    )


def verdict_of(
    trace: Trace | MeasuredTrace,
    budget_bytes: int,
    what_if: WhatIf | None = None,
    comparison: ComparisonView | None = None,
) -> Verdict:
    """Return the verdict on ``trace`` in ``budget_bytes``; ``comparison`` is made where none is given."""
    facts, what_if = facts_of(trace), what_if or WhatIf()
    compared = comparison or comparison_view(facts, budget_bytes, what_if)
    needs, floor = facts.peak_bytes, facts.floor_bytes
    verdict = Verdict(
        fits=needs <= budget_bytes,
        runs=floor <= budget_bytes,
        needs_bytes=needs,
        budget_bytes=budget_bytes,
        short_bytes=needs - budget_bytes,
        floor_bytes=floor,
        floor_op=facts.floor_op,
        per=facts.units.per,
        units=facts.units.count,
        compute_seconds=facts.unit_seconds(what_if.at(1).compute),
        least_bytes=compared.least_bytes,
    )
    if compared.policies:
        verdict = _with_costs(verdict, facts, what_if, compared)
    return replace(verdict, headline=headline_of(facts, verdict), sentence=sentence_of(verdict))


def _with_costs(verdict: Verdict, facts: MeasuredTrace, what_if: WhatIf, compared: ComparisonView) -> Verdict:
    best = compared.policies[0]
    plain = _plain_row(facts, verdict.budget_bytes, what_if, compared)
    return replace(
        verdict,
        best_policy=best.policy,
        best_needs_schedule=best.needs_schedule,
        moved_bytes=best.moved_bytes,
        seconds=best.seconds,
        slowdown=best.seconds / verdict.compute_seconds if verdict.compute_seconds else None,
        ahead=_best_lookahead(facts, verdict, what_if, best),
        plain_moved_bytes=plain.moved_bytes,
        ratio=_ratio(best, plain),
    )


def _plain_row(
    facts: MeasuredTrace, budget_bytes: int, what_if: WhatIf, compared: ComparisonView
) -> PolicyRow:
    plain_rows = [row for row in compared.policies if row.policy == PLAIN]
    return plain_rows[0] if plain_rows else comparison_view(facts, budget_bytes, what_if, [PLAIN]).policies[0]


def _ratio(best: PolicyRow, plain: PolicyRow) -> float | None:
    if not best.moved_bytes:
        return None if plain.moved_bytes else 1.0
    return plain.moved_bytes / best.moved_bytes


def _best_lookahead(
    facts: MeasuredTrace, verdict: Verdict, what_if: WhatIf, best: PolicyRow
) -> LoadedAhead | None:
    """Return the fastest look-ahead of ``LOOKAHEADS``; None where it saves less than 3 % of the time."""
    compute_s = verdict.compute_seconds
    if what_if.lookahead or not compute_s or not best.moved_bytes:
        return None
    candidates = []
    for lookahead in LOOKAHEADS:
        deeper = replace(what_if, lookahead=lookahead)
        machine = deeper.at(verdict.budget_bytes)
        report = simulate(facts.trace, machine, best.policy, lookahead=lookahead)
        seconds = seconds_of(facts, report, facts.resident(deeper))
        moved = facts.per_unit(report.moved_bytes, lookahead)
        candidates.append(LoadedAhead(lookahead, seconds, seconds / compute_s, moved))
    quickest = min(candidates, key=lambda each: each.seconds)
    return quickest if quickest.seconds < best.seconds * _WORTH_MENTIONING else None
