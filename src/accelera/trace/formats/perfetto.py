"""Chrome's trace format, which ui.perfetto.dev and chrome://tracing show: written only.

One slice per step, named by its op, and counters of the bytes alive, one per role.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accelera.trace.occupancy import Occupancy
from accelera.trace.trace import Trace

_PROCESS = 1
_UNKNOWN_US = 1.0
"""How wide a step is drawn whose duration is unknown."""


def write(trace: Trace, path: Path) -> None:
    """Write ``trace`` for looking at."""
    known = ~np.isnan(trace.seconds)
    lengths = np.where(known, trace.seconds * 1e6, _UNKNOWN_US)
    begins = np.cumsum(lengths) - lengths
    events = [*_names(trace), *_slices(trace, begins, lengths), *_counters(trace, begins)]
    about = {
        "model_type": trace.model_type,
        "time": f"{known.sum()} of {trace.step_count} steps have a duration; the others are drawn 1 us wide",
    }
    document = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}
    path.write_text(json.dumps(document, allow_nan=False), encoding="utf-8")


def _names(trace: Trace) -> Iterator[dict[str, Any]]:
    title = trace.model_type or "trace"
    yield {"ph": "M", "name": "process_name", "pid": _PROCESS, "tid": 0, "args": {"name": title}}
    yield {"ph": "M", "name": "thread_name", "pid": _PROCESS, "tid": 0, "args": {"name": "steps"}}


def _slices(
    trace: Trace, begins: NDArray[np.float64], lengths: NDArray[np.float64]
) -> Iterator[dict[str, Any]]:
    access = trace.is_access
    touched = np.bincount(
        trace.step[access], trace.size_bytes[trace.buffer[access]], minlength=trace.step_count
    )
    for step, op in enumerate(trace.ops):
        yield {
            "ph": "X",
            "name": op or f"step {step}",
            "cat": "step",
            "pid": _PROCESS,
            "tid": 0,
            "ts": float(begins[step]),
            "dur": float(lengths[step]),
            "args": {"step": step, "accessed_bytes": int(touched[step]), "flops": float(trace.flops[step])},
        }


def _counters(trace: Trace, begins: NDArray[np.float64]) -> Iterator[dict[str, Any]]:
    occupancy = Occupancy(trace)
    roles = sorted(set(trace.roles))
    courses = np.array([occupancy.per_step(role) for role in roles]).T
    for step, sizes in enumerate(courses.tolist() if len(roles) else []):
        if step == 0 or sizes != courses[step - 1].tolist():
            values = {role or "unknown": size for role, size in zip(roles, sizes, strict=True)}
            yield {
                "ph": "C",
                "name": "bytes alive",
                "pid": _PROCESS,
                "ts": float(begins[step]),
                "args": values,
            }
