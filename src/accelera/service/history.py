"""History: runs that were kept, each with its request, which can be sent again, and figures to compare.

A caller keeps a result with ``POST /v1/runs``. The service itself keeps finished jobs, except those of the
views (``fit``, ``least``, ``ways``, ``curves``, ``timeline``): a user interface requests these with every
move of a slider, and decides itself which of them to keep. Only the newest ``ServiceLimits.runs`` runs stay.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from accelera._plotting import format_size
from accelera.service.database import StoredRun, StoredTrace
from accelera.views._internal import policy_label

UNKEPT_KINDS = frozenset({"fit", "least", "ways", "curves", "timeline"})
"""Kinds of jobs that the service does not keep as runs: see the module's docstring."""
INTERACTIVE_KINDS = UNKEPT_KINDS | {"estimate", "plan"}
"""Kinds of jobs that a user waits for at a page; they are claimed before the others."""
_MOST_FIGURES = 24
_MOST_TEXT = 200


class Summary(NamedTuple):
    """A finished job in a few words and figures."""

    title: str
    headline: str
    figures: dict[str, Any]


def keep(session: Session, run: StoredRun, most: int) -> StoredRun:
    """Add a run, with its trace where that is stored, and forget the oldest beyond ``most``."""
    run.id = run.id or uuid.uuid4().hex
    run.created_s = run.created_s or time.time()
    run.trace = _stored_trace(session, run.request)
    session.add(run)
    session.flush()
    oldest = select(StoredRun.id).order_by(StoredRun.created_s.desc(), StoredRun.id).offset(most).limit(1000)
    beyond = session.scalars(oldest).all()
    if beyond:
        session.execute(delete(StoredRun).where(StoredRun.id.in_(beyond)))
    return run


def summary_of(kind: str, request: Mapping[str, Any], result: Any) -> Summary | None:
    """Return the summary of a finished job for the history; None for a kind that is not kept."""
    if kind in UNKEPT_KINDS:
        return None
    fields = result if isinstance(result, Mapping) else {}
    figures = [(name, value) for name, value in fields.items() if _is_figure(value)]
    title, headline = f"{kind} of {_subject(request)}", _headline(kind, fields)
    return Summary(title[:_MOST_TEXT], headline[:500], dict(figures[:_MOST_FIGURES]))


def _headline(kind: str, result: Mapping[str, Any]) -> str:
    if kind == "sweep":
        return f"{policy_label(result['best'])} moves least by and large; {_knee(result)}"
    if kind == "bounds":
        least, capacity = result["lower_bound_bytes"][0], result["capacities"][0]
        return f"no schedule moves less than {format_size(least)} at {format_size(capacity)}"
    if kind == "advise":
        best, at = result["ranking"][0], f"at {format_size(result['capacity_bytes'])}"
        if not best["moved_bytes"]:
            return f"{at} nothing need be moved, whatever the policy"
        return f"{at} use {policy_label(best['policy'])}: it moves {format_size(best['moved_bytes'])}"
    return str(result.get("headline", ""))


def _knee(result: Mapping[str, Any]) -> str:
    """Return the knee of the curve in words; below the floor, where no schedule runs, the floor instead."""
    floor, knee = result["floor_bytes"], result["knee_bytes"]
    if knee < floor:
        return f"no schedule runs below {format_size(floor)}"
    return f"its knee is at {format_size(knee)}"


def _subject(request: Mapping[str, Any]) -> str:
    """Return the subject of a request in words: a trace, a model or a product."""
    source = request.get("source")
    if isinstance(source, str):
        return f"trace {source[:12]}"
    if isinstance(source, Mapping):
        return f"{source.get('model_type', 'a model')}, {source.get('num_layers', '?')} layers"
    config = request.get("config")
    if isinstance(config, Mapping):
        return str(config.get("model_type", "a model"))
    return "a product" if "a" in request else "a model"


def _is_figure(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, str) and len(value) <= _MOST_TEXT)


def _stored_trace(session: Session, request: Mapping[str, Any]) -> str | None:
    """Return the digest of the stored trace that a request is about; it stays until the transaction ends."""
    source = request.get("source")
    if not isinstance(source, str) or re.fullmatch("[0-9a-f]{64}", source) is None:
        return None
    stored = select(StoredTrace.digest).where(StoredTrace.digest == source).with_for_update(read=True)
    return session.scalar(stored)
