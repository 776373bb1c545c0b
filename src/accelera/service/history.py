"""History: runs that were kept, with what asks the same again and the figures to compare.

A caller keeps what it was shown by ``POST /v1/runs``. Finished jobs are kept by the service, all but those of
the pictures (``fit``, ``least``, ``ways``, ``curves``, ``timeline``): a user interface asks for them with
every move of a slider, and knows itself which of them is worth keeping. Only the newest
``ServiceLimits.runs`` runs stay.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from accelera.plotting import format_size
from accelera.service.database import StoredRun, StoredTrace
from accelera.views import policy_label

UNKEPT_KINDS = frozenset({"fit", "least", "ways", "curves", "timeline"})
"""Jobs that are no runs: see the module."""
INTERACTIVE_KINDS = UNKEPT_KINDS | {"estimate", "plan"}
"""Jobs that somebody waits for at a page; they go before the others."""
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
    """Return what the history tells of a finished job; None for one that it does not keep."""
    if kind in UNKEPT_KINDS:
        return None
    told = result if isinstance(result, Mapping) else {}
    plain = [(name, value) for name, value in told.items() if _is_figure(value)]
    title, headline = f"{kind} of {_source(request)}", _headline(kind, told)
    return Summary(title[:_MOST_TEXT], headline[:500], dict(plain[:_MOST_FIGURES]))


def _headline(kind: str, told: Mapping[str, Any]) -> str:
    if kind == "sweep":
        return f"{policy_label(told['best'])} moves least by and large; {_knee(told)}"
    if kind == "bounds":
        least, capacity = told["lower_bound_bytes"][0], told["capacities"][0]
        return f"no schedule moves less than {format_size(least)} at {format_size(capacity)}"
    if kind == "advise":
        best, at = told["ranking"][0], f"at {format_size(told['capacity_bytes'])}"
        if not best["moved_bytes"]:
            return f"{at} nothing need be moved, whatever the policy"
        return f"{at} use {policy_label(best['policy'])}: it moves {format_size(best['moved_bytes'])}"
    return str(told.get("headline", ""))


def _knee(told: Mapping[str, Any]) -> str:
    """Return where more memory begins to pay less; a capacity in which no schedule runs is none to choose."""
    floor, knee = told["floor_bytes"], told["knee_bytes"]
    if knee < floor:
        return f"no schedule runs below {format_size(floor)}"
    return f"its knee is at {format_size(knee)}"


def _source(request: Mapping[str, Any]) -> str:
    """Return what was asked about, for people."""
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
    there = select(StoredTrace.digest).where(StoredTrace.digest == source).with_for_update(read=True)
    return session.scalar(there)
