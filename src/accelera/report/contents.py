"""Contents of a report: views of all pictures of a trace, and the page at each budget of its slider."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from accelera._plotting import format_budget, format_count, format_ratio, format_size
from accelera.charts._internal import budget_mark, occupancy_chart, policy_bars
from accelera.trace import Occupancy, Trace
from accelera.views import MeasuredTrace, WhatIf, fit_view
from accelera.views._internal import (
    ViewJson,
    curves_view,
    least_per_unit,
    policy_label,
    scores_view,
    timeline_view,
)

LARGEST = 12
"""Tensors that are named of those alive at the peak."""

BOUNDED = 20_000
"""Accesses; longer traces are bounded only when that is asked for."""


def report_contents(
    trace: Trace,
    budget_bytes: int,
    what_if: WhatIf | None = None,
    policies: Sequence[str] | None = None,
    *,
    bound: bool | None = None,
    title: str = "",
) -> dict[str, Any]:
    """Return the views of ``trace`` in ``budget_bytes``: ``title facts fit curves timeline scores largest``.

    Parameters
    ----------
    what_if
        The machine; a card of the class ``gpu-24gb`` by default.
    policies
        Names of policies to compare; four usual ones by default.
    bound
        Whether to work out the least bytes that any schedule moves: linear programs. None: for traces
        of up to ``BOUNDED`` accesses, which takes seconds.
    title
        What the report is about; the trace's own words by default.

    Raises UnknownNameError for a policy or machine, ValueError for a policy that needs a score.
    """
    facts, machine = MeasuredTrace(trace), what_if or WhatIf()
    bound = trace.access_count <= BOUNDED if bound is None else bound
    least = least_per_unit(facts, budget_bytes) if bound else None
    fit = fit_view(facts, budget_bytes, machine, policies, lower_bound_bytes=least)
    curves = curves_view(facts, policies, what_if=machine, bound=bound) if trace.access_count else None
    best, ahead = fit.verdict.best_policy, replace(machine, lookahead=machine.lookahead or 1)
    timeline = timeline_view(facts, budget_bytes, ahead, best) if best and trace.step_count else None
    return {
        "title": title or fit.verdict.headline,
        "facts": _facts(trace, machine, bound),
        "fit": fit.to_dict(),
        "curves": curves and curves.to_dict(),
        "timeline": timeline and timeline.to_dict(),
        "scores": scores_view(trace).to_dict() if trace.access_count else None,
        "largest": [one._asdict() for one in Occupancy(trace).top_live(LARGEST)],
    }


def _facts(trace: Trace, machine: WhatIf, bound: bool) -> list[str]:
    link = machine.at(1).tiers[1].bandwidth_bytes_per_s
    left_out = [] if bound else ["the least possible was not worked out: add --bound (bound=True) for it"]
    return [
        f"{format_count(trace.step_count)} operations, {format_count(trace.access_count)} accesses to "
        f"{format_count(trace.buffer_count)} tensors of {format_size(trace.footprint_bytes)} together",
        f"machine {machine.hierarchy}, {format_budget(link)}/s to the next memory; its figures are a model's",
        *left_out,
        "1 GB is 10⁹ bytes",
    ]


MANY = 1.095
"""Ratios above this are written as factors (``2× as much``), smaller ones in percent (``4 % more``)."""


def states_of(fit: ViewJson, curves: ViewJson) -> list[dict[str, Any]]:
    """Return one state per capacity of the curves, and one for the budget itself, by rising budget.

    Each has ``budget`` and ``text``, what is written; ``memory`` and ``you``, marks of two charts; ``bars``,
    the option of a third; the state of the budget has ``given``: true.
    """
    budget = fit["verdict"]["budget_bytes"]
    found = [_state(fit, curves, index) for index in range(len(curves["capacities"]))]
    found = [one for one in found if one["bytes"] != budget]
    found.append({**_marks(fit, curves, fit["comparison"], budget), "given": True})
    return sorted(found, key=lambda one: int(one["bytes"]))


def _state(fit: ViewJson, curves: ViewJson, index: int) -> dict[str, Any]:
    known = {one["policy"]: one for one in fit["comparison"]["policies"]}
    rows = [
        {
            "policy": name,
            "label": known.get(name, {}).get("label", policy_label(name)),
            "needs_schedule": known.get(name, {}).get("needs_schedule", False),
            "moved_bytes": moved[index],
        }
        for name, moved in curves["moved"].items()
    ]
    rows.sort(key=lambda row: (row["moved_bytes"], row["needs_schedule"]))
    least = curves["least"][index] if curves.get("least") else None
    comparison = {**fit["comparison"], "policies": rows, "least_bytes": least}
    return _marks(fit, curves, comparison, curves["capacities"][index])


def _marks(fit: ViewJson, curves: ViewJson, comparison: ViewJson, budget: int) -> dict[str, Any]:
    memory = occupancy_chart({**fit["occupancy"], "budget_bytes": budget})
    marks = memory["series"][-1] if memory["series"] else {}
    you = {
        "curves": budget_mark(curves, budget),
        "misses": budget_mark(curves, budget, measure="miss_ratio"),
    }
    return {
        "bytes": budget,
        "budget": format_budget(budget),
        "short": format_size(max(fit["verdict"]["needs_bytes"] - budget, 0)),
        "text": _text(fit["verdict"], comparison, budget),
        "memory": {name: marks[name] for name in ("markPoint", "markLine") if name in marks},
        "you": {name: [mark] if mark else [] for name, mark in you.items()},
        "bars": policy_bars(comparison),
    }


def _text(verdict: ViewJson, comparison: ViewJson, budget: int) -> str:
    """Return what a budget means, in two sentences at most."""
    short, rows = verdict["needs_bytes"] - budget, comparison["policies"]
    if short <= 0:
        return f"Everything fits, with {format_size(-short)} left: nothing has to move after the first load."
    if budget < verdict["floor_bytes"] or not rows:
        floor = format_size(verdict["floor_bytes"])
        return f"Too small: one operation alone needs {floor}."
    best, per = rows[0], comparison["per"]
    text = f"{format_size(short)} short. {best['label']} moves {format_size(best['moved_bytes'])} per {per}"
    plain = next((row for row in rows if row["policy"] == verdict["plain_policy"]), None)
    if plain is not None and plain is not best and best["moved_bytes"]:
        text += f"; {plain['label']} {format_size(plain['moved_bytes'])}, "
        text += _excess_words(plain["moved_bytes"] / best["moved_bytes"])
    if comparison.get("least_bytes") is not None:
        text += f". No schedule moves less than {format_size(comparison['least_bytes'])}"
    return f"{text}."


def _excess_words(ratio: float) -> str:
    return f"{format_ratio(ratio)} as much" if ratio > MANY else f"{100 * (ratio - 1):.0f} % more"
