"""Occupancy of the memory step by step: bytes alive by role, the peak, and the phases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accelera.trace import Kind, Trace
from accelera.views.facts import JsonView, MeasuredTrace, Units, facts_of

MOST_PHASES = 60
"""Most phases that are shown; more would be thin stripes."""
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
    """Return the phases in order; none where a trace has one, or too many to tell apart.

    A training step is forward until a gradient is touched, then backward, and an update from where optimizer
    state is touched or a weight written.
    """
    if units.per == "token":
        found = _token_phases(trace, units)
    elif units.per == "step":
        found = list(_training_phases(trace))
    else:
        found = [PhaseSpan(f"pass {n}", *span) for n, span in enumerate(_iterations(trace), start=1)]
    return found if 1 < len(found) <= MOST_PHASES else []


def _iterations(trace: Trace) -> list[tuple[int, int]]:
    """Return the first step of each iteration, and the one after its last."""
    recorded = trace.meta.get("iterations") or ()
    starts = sorted({0, *(int(each) for each in recorded if 0 <= each < trace.step_count)})
    return list(zip(starts, [*starts[1:], trace.step_count], strict=True))


def _token_phases(trace: Trace, units: Units) -> list[PhaseSpan]:
    if not units.first_step:
        return []
    tokens = [span for span in _iterations(trace) if span[0] >= units.first_step]
    prompt = PhaseSpan("prompt", 0, units.first_step)
    if len(tokens) > _TOKENS_NAMED:
        return [prompt, PhaseSpan("tokens", units.first_step, trace.step_count)]
    return [prompt, *(PhaseSpan(f"token {n}", *span) for n, span in enumerate(tokens, start=1))]


def _training_phases(trace: Trace) -> Iterator[PhaseSpan]:
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


MOST_POINTS = 600
"""Points of a series, at most."""


def thinned(values: NDArray[np.int64], most: int = MOST_POINTS) -> NDArray[np.intp]:
    """Return the indices of up to ``most`` values, rising: the first, the last, all extremes that count.

    The values are cut into equal runs, and the lowest and the highest of each run are kept (first of equals),
    so the highest of all stays.
    """
    count = len(values)
    if count <= most:
        return np.arange(count)
    runs = (most - 2) // 2
    edges = np.linspace(0, count, runs + 1).astype(np.intp)
    kept = [0, count - 1]
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        part = values[begin:end]
        kept += (begin + int(part.argmin()), begin + int(part.argmax()))
    return np.unique(kept)


LABELS = {
    "weight": "weights",
    "activation": "activations",
    "gradient": "gradients",
    "optimizer_state": "optimizer",
    "kv_cache": "KV cache",
    "input": "inputs",
    "workspace": "workspace",
    "tile": "tiles",
    "other": "other",
}
"""Roles as people read them."""
SMALL_BYTES = 10**6
"""Roles that never reach this, or a hundredth of the peak, are shown together."""
_SMALL_SHARE = 100


@dataclass(frozen=True)
class RoleSeries:
    """Bytes of one role at the shown steps."""

    role: str
    label: str
    bytes: list[int]


@dataclass(frozen=True)
class OccupancyPeak:
    """The fullest moment."""

    step: int
    op: str
    """Operation of that step, in words."""
    bytes: int
    roles: dict[str, int]
    """Bytes by role, the largest first."""


@dataclass(frozen=True)
class OccupancyView(JsonView):
    """Bytes alive over the steps of a trace, at most 600 points with all peaks."""

    steps: list[int]
    """Index of each shown step."""
    roles: list[RoleSeries]
    """The largest at the peak first; at every step they sum to the total."""
    total: list[int]
    peak: OccupancyPeak
    phases: list[PhaseSpan]
    steps_in_all: int
    budget_bytes: int | None


def occupancy_view(trace: Trace | MeasuredTrace, budget_bytes: int | None = None) -> OccupancyView:
    """Return what is alive at each step, when it is fullest; ``budget_bytes`` is drawn in."""
    facts = facts_of(trace)
    names, series = _by_role(facts)
    total = series.sum(axis=0)
    shown = thinned(total)
    peak = _peak(facts, total, names, series)
    return OccupancyView(
        steps=shown.tolist(),
        roles=[
            RoleSeries(name, LABELS.get(name, name), series[row, shown].tolist())
            for row, name in enumerate(names)
        ],
        total=total[shown].tolist(),
        peak=peak,
        phases=phases_of(facts.trace, facts.units),
        steps_in_all=facts.trace.step_count,
        budget_bytes=budget_bytes,
    )


def _by_role(facts: MeasuredTrace) -> tuple[list[str], NDArray[np.int64]]:
    """Return the roles and their bytes at each step's fullest moment, shape (roles, steps)."""
    trace, occupancy = facts.trace, facts.occupancy
    roles = np.array([role or "other" for role in trace.roles], dtype=object)
    names = list(dict.fromkeys(roles.tolist()))
    index = {name: row for row, name in enumerate(names)}
    of_buffer = np.array([index[role] for role in roles.tolist()], dtype=np.intp)
    series = np.zeros((len(names), trace.step_count), dtype=np.int64)
    moments = occupancy.fullest_events
    change = occupancy.changes * trace.size_bytes[trace.buffer]
    for row in range(len(names)):
        begin = int(trace.size_bytes[occupancy.at_start & (of_buffer == row)].sum())
        alive = begin + np.concatenate([[0], np.cumsum(np.where(of_buffer[trace.buffer] == row, change, 0))])
        series[row] = alive[moments + 1]
    if occupancy.peak_event < 0 and trace.step_count:  # fullest before anything happens
        starting = np.bincount(of_buffer, trace.size_bytes * occupancy.at_start, len(names))
        series[:, 0] = starting.astype(np.int64)
    return _merged(names, series)


def _merged(names: list[str], series: NDArray[np.int64]) -> tuple[list[str], NDArray[np.int64]]:
    """Return the roles with the small ones together, the largest at the peak first."""
    if not series.size:
        return [], np.zeros((0, series.shape[1]), dtype=np.int64)
    total = series.sum(axis=0)
    small = series.max(axis=1) < min(SMALL_BYTES, int(total.max()) / _SMALL_SHARE)
    small |= np.array([name == "other" for name in names])
    rest = series[small].sum(axis=0)
    kept = [row for row in np.argsort(-series[:, int(total.argmax())], kind="stable") if not small[row]]
    found = [names[row] for row in kept]
    if rest.any():
        return [*found, "other"], np.vstack([series[kept], rest])
    return found, series[kept]


def _peak(
    facts: MeasuredTrace, total: NDArray[np.int64], names: list[str], series: NDArray[np.int64]
) -> OccupancyPeak:
    if not len(total):
        return OccupancyPeak(0, "", facts.peak_bytes, {})
    step = int(total.argmax())
    roles = {name: int(series[row, step]) for row, name in enumerate(names) if series[row, step]}
    largest = dict(sorted(roles.items(), key=lambda item: -item[1]))
    return OccupancyPeak(step, facts.trace.ops[step].replace("_", " "), facts.peak_bytes, largest)
