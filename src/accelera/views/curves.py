"""Curves of bytes moved and misses over the budget: the gain of more memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from accelera.simulator import Sweep, sweep
from accelera.simulator._internal import bound_curve, depths_below_chord
from accelera.trace import Trace
from accelera.views.comparison import USUAL_POLICIES
from accelera.views.facts import JsonView, MeasuredTrace, Per, WhatIf, facts_of

POINTS = 40
TOLERANCE, MOST_SOLVED = 0.03, 6
"""Of the drawn bound: how far it may lie too low between points that are solved, and how many those are."""
SHALLOW = 0.10
"""A curve that lies less than this share below its chord has no knee worth showing."""


@dataclass(frozen=True)
class CurvesView(JsonView):
    """Figures over the budget, from the floor (the largest step) to the peak (everything alive)."""

    per: Per
    capacities: list[int]
    """Budgets in bytes, rising."""
    moved: dict[str, list[int]]
    """By policy: bytes per unit, without the first load."""
    miss_ratio: dict[str, list[float]]
    """By policy: accesses that did not find their buffer, over all."""
    least: list[int] | None
    """Bytes per unit that no schedule goes below, first load aside; None where that was not asked for."""
    knee_bytes: int | None
    """Budget beyond which more pays less than before, of the best policy; None where there is no bend."""
    knee_policy: str
    """The policy that does best by and large, whose knee it is."""
    miss_knee_bytes: int | None
    """The same of the misses, of the policy with the fewest by and large."""
    floor_bytes: int
    peak_bytes: int
    first_load_bytes: int


def curves_view(
    trace: Trace | MeasuredTrace,
    policies: Sequence[str] | None = None,
    points: int = POINTS,
    what_if: WhatIf | None = None,
    *,
    bound: bool = False,
) -> CurvesView:
    """Return what ``sweep`` finds for ``trace``, per unit and without the first load.

    ``bound`` adds the least that any schedule could move: linear programs, a second and more.
    """
    facts, what_if = facts_of(trace), what_if or WhatIf()
    machine = what_if.at(max(facts.floor_bytes, 1))
    result = sweep(
        facts.trace,
        list(policies or USUAL_POLICIES),
        points,
        machine,
        lookahead=what_if.lookahead,
        progress=False,
    )
    least = None
    if bound:
        bounds = bound_curve(facts.trace, result.capacities, tolerance=TOLERANCE, most_solved=MOST_SOLVED)
        least = [facts.per_unit(int(each)) for each in bounds]
    misses = {name: _misses(result, name) for name in result.policies}
    return CurvesView(
        per=facts.units.per,
        capacities=list(result.capacities),
        moved={name: _moved(facts, result, name, what_if.lookahead) for name in result.policies},
        miss_ratio=misses,
        least=least,
        knee_bytes=_knee(result, result.moved_bytes(result.best())),
        knee_policy=result.best(),
        miss_knee_bytes=_knee(result, min(misses.values(), key=sum)),
        floor_bytes=facts.floor_bytes,
        peak_bytes=facts.peak_bytes,
        first_load_bytes=facts.first_load_bytes(what_if.lookahead),
    )


def _moved(facts: MeasuredTrace, result: Sweep, policy: str, lookahead: int) -> list[int]:
    return [facts.per_unit(each, lookahead) for each in result.moved_bytes(policy).tolist()]


def _misses(result: Sweep, policy: str) -> list[float]:
    return [1 - report.hit_ratio for report in result.reports[policy]]


def _knee(result: Sweep, curve: ArrayLike) -> int | None:
    """Return the knee of a curve that lies far enough below the line between its ends."""
    depths = depths_below_chord(result.capacities, curve)
    return result.capacities[int(np.argmax(depths))] if len(depths) > 2 and depths.max() >= SHALLOW else None
