"""A trace as one flat table, one row per event: the columns that every table format shares."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accelera.trace.access import Kind

MIB = 1 << 20
"""Bytes in the seed's "MB": memory is counted in powers of two."""

KINDS = tuple(kind.name.lower() for kind in Kind)
"""How kinds are written: ``"read"``, ``"write"`` …, by their numbers."""

STORED = (
    "buffer",
    "kind",
    "step",
    "stride",
    "size_bytes",
    "name",
    "role",
    "dtype",
    "op",
    "flops",
    "seconds",
    "eviction_score",
)
"""The columns from which a trace is built again; all others follow from them."""


def codes_and_values(trace: Any) -> dict[str, tuple[NDArray[Any], NDArray[Any]]]:
    """Return the text columns of a ``Trace`` as an index per event and the values it points into."""
    kinds = np.array(KINDS, object)
    return {
        "kind": (trace.kind, kinds),
        "name": (trace.buffer, np.array(trace.names, object)),
        "role": (trace.buffer, np.array(trace.roles, object)),
        "dtype": (trace.buffer, np.array(trace.dtypes, object)),
        "op": (trace.step, np.array(trace.ops, object)),
    }


def numbers(trace: Any) -> dict[str, NDArray[Any]]:
    """Return the number columns of a ``Trace``, each of shape (events,)."""
    found = {
        "buffer": trace.buffer,
        "step": trace.step,
        "stride": trace.stride,
        "size_bytes": trace.size_bytes[trace.buffer],
        "flops": trace.flops[trace.step],
        "seconds": trace.seconds[trace.step],
    }
    if trace.scores is not None:
        found["eviction_score"] = per_event(trace, trace.scores)
    return found


def per_event(trace: Any, values: NDArray[Any], missing: float = np.nan) -> NDArray[np.float64]:
    """Spread values per access over all events; the others get ``missing``."""
    found: NDArray[np.float64] = np.full(len(trace), missing)
    found[trace.is_access] = values
    return found


def stored_columns(trace: Any) -> dict[str, NDArray[Any]]:
    """Return the ``STORED`` columns of a ``Trace``, each of shape (events,); texts are objects."""
    texts = {column: values[codes] for column, (codes, values) in codes_and_values(trace).items()}
    found = {**texts, **numbers(trace)}
    return {column: found[column] for column in STORED if column in found}


def idle_steps(trace: Any) -> dict[str, list[Any]]:
    """Return the steps without events, of which no row tells: lists ``step, op, flops, seconds``."""
    busy = np.zeros(trace.step_count, np.bool_)
    busy[trace.step] = True
    idle = np.flatnonzero(~busy)
    return {
        "step": idle.tolist(),
        "op": [trace.ops[step] for step in idle],
        "flops": trace.flops[idle].tolist(),
        "seconds": [None if np.isnan(value) else value for value in trace.seconds[idle].tolist()],
    }


def tensor_ids(names: tuple[str, ...]) -> NDArray[Any]:
    """Return one unique text per buffer: its name, with its number where several share a name."""
    uses = Counter(names)
    unique = [name if uses[name] == 1 else f"{name}#{buffer}" for buffer, name in enumerate(names)]
    return np.array(unique, object)
