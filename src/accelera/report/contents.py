"""Contents of a report: the views of all pictures of a trace, as JSON-able values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from accelera.plotting import format_budget, format_count, format_size
from accelera.trace import Occupancy, Trace
from accelera.views import (
    MeasuredTrace,
    WhatIf,
    curves_view,
    fit_view,
    least_per_unit,
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
        That are compared; four usual ones by default.
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
    fit = fit_view(facts, budget_bytes, machine, policies, least_bytes=least)
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
