"""Endpoints of the views of a trace: fit in a budget, least bytes, ways to fit, curves and timeline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request, Response
from sqlalchemy import select

from accelera.service.database import Database, StoredTrace
from accelera.service.problems import documented, too_large
from accelera.service.replies import MEDIA_TYPE, ReplyCache, json_bytes
from accelera.service.schemas import CurvesRequest, FitRequest, TimelineRequest, Workload
from accelera.service.settings import ServiceSettings
from accelera.service.submission import STATUSES, Fresh, Wait, submit_job
from accelera.service.trace_store import TraceCache
from accelera.service.traces import trace_not_found
from accelera.service.work import curves_of, fit_of, timeline_of, trace_of, ways_of
from accelera.views import MeasuredTrace
from accelera.views._internal import presets

router = APIRouter(tags=["fit"], responses=documented(401, 422, 500))

_INLINE_ACCESSES = 10_000
"""Most accesses of a trace that is replayed in the event loop itself; longer ones are in a thread."""
_OVERSTATEMENT = 3
"""Factor by which ``expected_accesses`` may overstate: up to this multiple of the limit, the trace is
generated to count its accesses."""
_STATUSES: dict[int | str, dict[str, Any]] = {**STATUSES, **documented(404)}


@router.post(
    "/fit", summary="Say whether a trace fits a budget, and what it costs if not", responses=_STATUSES
)
async def fit(request: Request, body: FitRequest, wait: Wait = 0) -> Response:
    """Return the verdict, what fills the memory step by step, and what each policy moves."""
    return await _reply_with_view(request, "fit", body, fit_of, wait)


@router.post("/fit/ways", summary="Say what makes a trace fit, or what else fits", responses=_STATUSES)
async def fit_ways(request: Request, body: FitRequest, wait: Wait = 0) -> Response:
    """Return smaller batches, contexts and types and a larger card that fit; of what fits, how much more."""
    return await _reply_with_view(request, "ways", body, ways_of, wait, slow=True)


@router.post("/fit/least", summary="Find the least bytes that any schedule moves", responses=_STATUSES)
async def fit_least(request: Request, body: FitRequest, wait: Wait = 10, fresh: Fresh = False) -> Response:
    """Return the least bytes per step, token or pass; a job when that takes longer than ``wait``."""
    await require_source(request, body.source)
    return await submit_job(request, "least", body, wait, fresh)


@router.post("/curves", summary="Say what more memory would buy", responses=_STATUSES)
async def curves(request: Request, body: CurvesRequest, wait: Wait = 0) -> Response:
    """Return bytes moved and misses of each policy from the largest step to everything alive."""
    if body.bound:
        await require_source(request, body.source)
        return await submit_job(request, "curves", body, wait)
    return await _reply_with_view(request, "curves", body, curves_of, wait, slow=True)


@router.post("/timeline", summary="Say when a replay computes, loads and stores", responses=_STATUSES)
async def timeline(request: Request, body: TimelineRequest, wait: Wait = 0) -> Response:
    """Return what is busy when, what is waited for, and how full the memory is meanwhile."""
    return await _reply_with_view(request, "timeline", body, timeline_of, wait)


@router.get("/models", summary="List usual models and cards")
async def models() -> Response:
    """Return the shapes of usual transformers, and usual amounts of memory with their links."""
    return Response(json_bytes(presets()), media_type=MEDIA_TYPE)


async def _reply_with_view(
    request: Request,
    kind: str,
    body: Any,
    view: Callable[[Any, MeasuredTrace], Any],
    wait_s: float,
    *,
    slow: bool = False,
) -> Response:
    """Reply with a view: of a short trace at once, or from a thread when ``slow``; of a long one by a job."""
    facts = await _facts_if_short(request, body.source)
    if facts is None:
        return await submit_job(request, kind, body, wait_s)
    cache: ReplyCache = request.app.state.replies
    key = (kind, body.model_dump_json())
    if cache.holds(key) or not (slow or facts.trace.access_count > _INLINE_ACCESSES):
        return cache.reply(key, lambda: view(body, facts))
    content = await asyncio.to_thread(view, body, facts)
    return cache.reply(key, lambda: content)


async def _facts_if_short(request: Request, source: Workload | str) -> MeasuredTrace | None:
    """Return the facts of a trace that is short enough to be replayed while the caller waits, else None.

    Raises Problem when the trace is not stored or exceeds the limit.
    """
    limit = request.app.state.settings.limits.quick_accesses
    cache: TraceCache = request.app.state.trace_cache
    if isinstance(source, Workload):
        expected = _checked_accesses(request, source)
        key = source.model_dump_json()
        facts = cache.get(key)
        if facts is None and expected <= _OVERSTATEMENT * limit:
            quick = expected <= _INLINE_ACCESSES
            facts = cache.put(key, source.trace() if quick else await asyncio.to_thread(source.trace))
        return facts if facts is not None and facts.trace.access_count <= limit else None
    database: Database = request.app.state.database
    if await asyncio.to_thread(_stored_length, database, source) > limit:
        return None
    facts = cache.get(source) or cache.put(source, await asyncio.to_thread(trace_of, database, source))
    return facts if len(facts.trace) <= _OVERSTATEMENT * limit else None  # there may be many frees


async def require_source(request: Request, source: Workload | str) -> None:
    """Raise Problem when a trace is not stored or exceeds the limit."""
    if isinstance(source, Workload):
        _checked_accesses(request, source)
    else:
        await asyncio.to_thread(_stored_length, request.app.state.database, source)


def _checked_accesses(request: Request, workload: Workload) -> int:
    settings: ServiceSettings = request.app.state.settings
    expected, limit = workload.expected_accesses(), settings.limits.accesses
    if expected > limit:
        raise too_large("accesses of the trace", expected, limit, "take fewer layers, steps or experts")
    return expected


def _stored_length(database: Database, digest: str) -> int:
    """Return the largest of a stored trace's numbers of accesses, buffers and steps; raises Problem (404)."""
    columns = (StoredTrace.accesses, StoredTrace.buffers, StoredTrace.steps)
    with database.session() as session:
        row = session.execute(select(*columns).where(StoredTrace.digest == digest)).first()
    if row is None:
        raise trace_not_found(digest)
    return max(row)
