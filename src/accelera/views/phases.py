"""Phases of a trace: forward, backward and update of a step; prompt and tokens of a generation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accelera.trace import Kind, Trace
from accelera.views.facts import Units

MOST_PHASES = 60
"""More would be stripes, and are not told."""
_TOKENS_NAMED = 8


@dataclass(frozen=True)
class PhaseSpan:
    """Steps that belong together."""

    name: str
    begin: int
    """Index of the first step."""
    end: int
    """Index after the last step."""


def phases_of(trace: Trace, units: Units) -> list[PhaseSpan]:
    """Return the phases in order; none where a trace has one, or too many to be told apart.

    A training step is forward until a gradient is touched, then backward, and an update from where optimizer
    state is touched or a weight written.
    """
    if units.per == "token":
        found = _generated(trace, units)
    elif units.per == "step":
        found = list(_trained(trace))
    else:
        found = [PhaseSpan(f"pass {n}", *span) for n, span in enumerate(_iterations(trace), start=1)]
    return found if 1 < len(found) <= MOST_PHASES else []


def _iterations(trace: Trace) -> list[tuple[int, int]]:
    """Return the first step of each iteration, and the one after its last."""
    told = trace.meta.get("iterations") or ()
    starts = sorted({0, *(int(each) for each in told if 0 <= each < trace.step_count)})
    return list(zip(starts, [*starts[1:], trace.step_count], strict=True))


def _generated(trace: Trace, units: Units) -> list[PhaseSpan]:
    if not units.first_step:
        return []
    tokens = [span for span in _iterations(trace) if span[0] >= units.first_step]
    prompt = PhaseSpan("prompt", 0, units.first_step)
    if len(tokens) > _TOKENS_NAMED:
        return [prompt, PhaseSpan("tokens", units.first_step, trace.step_count)]
    return [prompt, *(PhaseSpan(f"token {n}", *span) for n, span in enumerate(tokens, start=1))]


def _trained(trace: Trace) -> Iterator[PhaseSpan]:
    accesses = trace.is_access
    steps, buffers = trace.step[accesses], trace.buffer[accesses]
    code = {"gradient": 1, "optimizer_state": 2, "weight": 3}
    role = np.array([code.get(each, 0) for each in trace.roles], dtype=np.int8)[buffers]
    updates = (role == 2) | ((role == 3) & (trace.kind[accesses] == Kind.WRITE))
    gradients, updated = np.unique(steps[role == 1]), np.unique(steps[updates])
    for begin, end in _iterations(trace):
        backward = _first(gradients, begin, end)
        update = _first(updated, backward, end)
        edges = (begin, backward, update, end)
        for name, since, until in zip(("forward", "backward", "update"), edges, edges[1:], strict=False):
            if since < until:
                yield PhaseSpan(name, since, until)


def _first(steps: NDArray[np.int32], begin: int, end: int) -> int:
    """Return the first of the rising ``steps`` from ``begin`` on, at most ``end``."""
    place = int(np.searchsorted(steps, begin))
    return min(int(steps[place]), end) if place < len(steps) else end
