"""What the bytes of a trace are for, as an estimate tells it apart."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from accelera.interceptor.estimating.phase import Phase
from accelera.trace import Occupancy, Trace

ROLES = ("weights", "inputs", "activations", "kv_cache", "gradients", "optimizer_state", "temporaries")
"""In the order of tables: gradients are those of weights; temporaries are what a backward pass and an
optimizer make and drop."""

_BY_TRACE_ROLE = {
    "weight": "weights",
    "input": "inputs",
    "activation": "activations",
    "kv_cache": "kv_cache",
    "optimizer_state": "optimizer_state",
}
_LARGEST = 5


def phase_of(trace: Trace, name: str, dtype: str, subject: tuple[Any, Any]) -> Phase:
    """Return what the captured ``trace`` of ``subject`` takes, weights that it never touches included."""
    told = _retold(trace)
    alive = Occupancy(told)
    idle = {"weights": int(trace.meta["idle_bytes"])}
    return Phase(
        name=name,
        dtype=dtype,
        most={role: _most(alive, role) + idle.get(role, 0) for role in ROLES},
        at_peak=_added(alive.peak_by_role(), idle),
        peak_bytes=alive.peak_bytes + idle["weights"],
        peak_op=told.ops[told.step[alive.peak_event]] if alive.peak_event >= 0 else "",
        largest=tuple((each.name, each.size_bytes) for each in alive.top_live(_LARGEST)),
        outputs_bytes=int(trace.meta.get("outputs_bytes", 0)),
        trace=trace,
        subject=subject,
    )


def _retold(trace: Trace) -> Trace:
    roles = [_role(*each) for each in zip(trace.roles, trace.names, strict=True)]
    return dataclasses.replace(trace, roles=tuple(roles))


def _role(role: str, name: str) -> str:
    if role == "gradient" and name.endswith(".grad"):
        return "gradients"
    return _BY_TRACE_ROLE.get(role, "temporaries")


def _most(alive: Occupancy, role: str) -> int:
    trace = alive.trace
    at_start = np.where(np.array(trace.roles) == role, trace.size_bytes, 0)[alive.at_start].sum()
    return int(alive.after_events(role).max(initial=at_start)) if len(trace) else 0


def _added(first: dict[str, int], second: dict[str, int]) -> dict[str, int]:
    return {role: first.get(role, 0) + second.get(role, 0) for role in ROLES}
