"""Tables of traces: the facts stored beside the rows, and tables from other programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from accelera._json_values import shown
from accelera.errors import TraceFormatError
from accelera.trace.columns import MOST_STEPS, most_steps
from accelera.trace.dataframe import Label, columns_of_frame, idle_steps, model_type_of
from accelera.trace.trace import Trace, content_hash

if TYPE_CHECKING:
    import pandas as pd

VERSION = 1
"""Of what ``facts_of`` returns and of the columns beside it; other versions are refused."""

_KINDS_OF_FACTS = {"model_type": str, "meta": dict, "idle_steps": dict, "content_hash": str}


def facts_of(trace: Trace) -> dict[str, Any]:
    """Return what the rows of a trace do not tell, JSON-able."""
    return {
        "version": VERSION,
        "model_type": trace.model_type,
        "meta": dict(trace.meta),
        "idle_steps": idle_steps(trace),
        "content_hash": content_hash(trace),
    }


def trace_of(table: pd.DataFrame, facts: Any, path: Path, label: Label) -> Trace:
    """Return the trace of rows and facts that were written together; checks version and hash."""
    _check_facts(path, facts, len(table))
    columns = columns_of_frame(table, source=str(path), label=label, idle=facts["idle_steps"])
    trace = Trace(**columns, model_type=facts["model_type"], meta=facts["meta"])
    if content_hash(trace) != facts["content_hash"]:
        raise TraceFormatError(
            f"[read_trace] {path}: its contents do not match the hash it was written with: it was damaged or "
            "edited; write it again"
        )
    return trace


def _check_facts(path: Path, facts: Any, events: int) -> None:
    version = facts.get("version") if isinstance(facts, dict) else None
    if version != VERSION:
        raise TraceFormatError(
            f"[read_trace] {path} has version {shown(version, repr)} of the format; {VERSION} is known here"
        )
    for name, kind in _KINDS_OF_FACTS.items():
        if not isinstance(facts.get(name), kind):
            raise TraceFormatError(
                f"[read_trace] {path}: {name} is {shown(facts.get(name), repr)}, not a {kind.__name__}; "
                "write it again"
            )
    if not _is_idle_steps(facts["idle_steps"], events):
        raise TraceFormatError(
            f"[read_trace] {path}: idle_steps is {shown(facts['idle_steps'], repr)}, and must hold lists of "
            "one length: step, op, flops, seconds; write it again"
        )
    _check_meta(path, facts["meta"])


def _check_meta(path: Path, meta: dict[str, Any]) -> None:
    """Refuse facts about the recording that cannot be, as far as they are written or looked at again."""
    try:
        json.dumps(meta, allow_nan=False)
    except ValueError as error:
        raise TraceFormatError(f"[read_trace] {path}: meta: {error}; write it again") from error
    for name, is_sound, rule in (
        ("capacity_bytes", _is_size, "a number of bytes"),
        ("iterations", _are_steps, "a list of steps"),
    ):
        if name in meta and not is_sound(meta[name]):
            raise TraceFormatError(
                f"[read_trace] {path}: meta.{name} is {shown(meta[name], repr)}, not {rule}; write it again"
            )


def _is_size(found: Any) -> bool:
    return _is_index(found, 2**63)


def _are_steps(found: Any) -> bool:
    return isinstance(found, list) and all(_is_index(each, MOST_STEPS) for each in found)


def _is_idle_steps(idle: dict[str, Any], events: int) -> bool:
    """Return whether ``idle`` describes steps without events in the form of ``idle_steps``."""
    columns: list[Any] = [idle.get(name) for name in ("step", "op", "flops", "seconds")]
    if not all(isinstance(column, list) for column in columns):
        return False
    steps, ops, flops, seconds = columns
    most = most_steps(events, len(steps))
    return (
        len({len(column) for column in columns}) == 1
        and all(_is_index(step, most) for step in steps)
        and all(isinstance(op, str) for op in ops)
        and all(map(_is_amount, flops))
        and all(each is None or _is_amount(each) for each in seconds)
    )


def _is_index(found: Any, end: int) -> bool:
    return type(found) is int and 0 <= found < end


def _is_amount(found: Any) -> bool:
    return type(found) in (int, float) and 0 <= found <= sys.float_info.max


def trace_of_table(
    table: pd.DataFrame, path: Path, label: Label, called: Mapping[str, str] | None = None
) -> Trace:
    """Return the trace that a table from anywhere tells of.

    Parameters
    ----------
    label
        How a row is called in messages.
    called
        What the file calls columns that have been renamed.
    """
    columns = columns_of_frame(table, source=str(path), label=label, called=called)
    return Trace(**columns, model_type=model_type_of(table), meta={"source": path.name})


def largest_sizes(ids: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return per event the largest size that its buffer has anywhere.

    Requests to a web cache may find an object grown; a tensor's buffer keeps its size.
    """
    largest = np.zeros(int(ids.max(initial=-1)) + 1, np.int64)
    np.maximum.at(largest, ids, sizes)
    found: NDArray[np.int64] = largest[ids]
    return found
