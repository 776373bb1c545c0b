"""Views as the service replies them: of real traces, small, and with names that mean harm."""

from __future__ import annotations

from functools import cache
from typing import Any

from accelera.simulator import generate_synthetic_trace
from accelera.trace import Trace
from accelera.views import MeasuredTrace, WhatIf, fit_view
from accelera.views._internal import curves_view, scores_view, timeline_view

HOSTILE = (
    "</script><img src=x onerror=alert(1)>",
    "{c} {a|b} $x_1$ 'q' \"r\" &amp;",
    "=1+1\x00\u202e\U0001f4a5",
)


@cache
def trace(name: str) -> Trace:
    if name == "training":
        return generate_synthetic_trace(
            "Transformer", 4, 2, 64, 0.0, mode="training", hidden_size=64, steps=2
        )
    if name == "generation":
        return generate_synthetic_trace("Transformer", 3, 1, 32, 0.0, mode="decode", hidden_size=64, steps=3)
    if name == "tiny":
        return Trace.from_arrays([0, 1, 2, 0, 1, 3], 100)
    if name == "empty":
        return Trace.from_arrays([], [])
    assert name == "hostile"
    names = [HOSTILE[index % 3] * (1 + index // 3) for index in range(4)]
    ids = [0, 1, 2, 3, 0, 1, 2, 3]
    return Trace.from_arrays(ids, 1000, names=names, ops=list(HOSTILE) + ["</title>"] * 5)


NAMES = ("training", "generation", "tiny", "empty", "hostile")


@cache
def views(name: str) -> dict[str, Any]:
    """Return ``fit curves timeline scores`` of a trace in 60 % of its peak, and that ``budget``."""
    facts = MeasuredTrace(trace(name))
    budget = max(int(facts.peak_bytes * 0.6), facts.floor_bytes)
    bound = name in ("training", "tiny")
    least = None if not bound else facts.peak_bytes // 20
    fit = fit_view(facts, budget, lower_bound_bytes=least).to_dict()
    curves = curves_view(facts, points=8, bound=bound).to_dict()
    timeline = timeline_view(facts, budget, WhatIf(lookahead=1)).to_dict()
    found = scores_view(trace(name)).to_dict()
    return {"fit": fit, "curves": curves, "timeline": timeline, "scores": found, "budget": budget}


def scores() -> list[dict[str, Any]]:
    """Return accesses with scores as ``/simulate`` replies them."""
    names = [f"Q_{index}" for index in range(48)] + [HOSTILE[0], HOSTILE[1]]
    return [
        {
            "tensor_id": name,
            "reuse_distance": None if not turn else (turn * index) % 70,
            "eviction_score": (index * 7 + turn) % 11 / 10,
        }
        for turn in range(4)
        for index, name in enumerate(names)
    ]
