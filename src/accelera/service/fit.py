"""The pictures of a trace as numbers: does it fit, what would it cost, what would more memory buy."""

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
from accelera.service.submission import STATUSES, Fresh, Wait, submitted
from accelera.service.trace_store import HeldTraces
from accelera.service.traces import absent
from accelera.service.work import curves_of, fit_of, timeline_of, trace_of, ways_of
from accelera.views import MeasuredTrace, presets

router = APIRouter(tags=["fit"], responses=documented(401, 422, 500))

_INLINE = 10_000
"""Accesses of a trace that is replayed between two turns of the event loop; longer ones take a thread."""
_LOOSENESS = 3
"""How much ``expected_accesses`` may overstate: up to this multiple of the limit, the trace is generated to
count its accesses."""
_STATUSES: dict[int | str, dict[str, Any]] = {**STATUSES, **documented(404)}


@router.post(
    "/fit", summary="Say whether a trace fits a budget, and what it costs if not", responses=_STATUSES
)
async def fit(request: Request, asked: FitRequest, wait: Wait = 0) -> Response:
    """Return the verdict, what fills the memory step by step, and what each policy moves."""
    return await _pictured(request, "fit", asked, fit_of, wait)


@router.post("/fit/ways", summary="Say what makes a trace fit, or what else fits", responses=_STATUSES)
async def fit_ways(request: Request, asked: FitRequest, wait: Wait = 0) -> Response:
    """Return smaller batches, contexts and types and a larger card that fit; of what fits, how much more."""
    return await _pictured(request, "ways", asked, ways_of, wait, slow=True)


@router.post("/fit/least", summary="Find the least bytes that any schedule moves", responses=_STATUSES)
async def fit_least(request: Request, asked: FitRequest, wait: Wait = 10, fresh: Fresh = False) -> Response:
    """Return the least bytes per step, token or pass; a job when that takes longer than ``wait``."""
    await require_source(request, asked.source)
    return await submitted(request, "least", asked, wait, fresh)


@router.post("/curves", summary="Say what more memory would buy", responses=_STATUSES)
async def curves(request: Request, asked: CurvesRequest, wait: Wait = 0) -> Response:
    """Return bytes moved and misses of each policy from the largest step to everything alive."""
    if asked.bound:
        await require_source(request, asked.source)
        return await submitted(request, "curves", asked, wait)
    return await _pictured(request, "curves", asked, curves_of, wait, slow=True)


@router.post("/timeline", summary="Say when a replay computes, loads and stores", responses=_STATUSES)
async def timeline(request: Request, asked: TimelineRequest, wait: Wait = 0) -> Response:
    """Return what is busy when, what is waited for, and how full the memory is meanwhile."""
    return await _pictured(request, "timeline", asked, timeline_of, wait)


@router.get("/models", summary="List usual models and cards")
async def models() -> Response:
    """Return the shapes of usual transformers, and usual amounts of memory with their links."""
    return Response(json_bytes(presets()), media_type=MEDIA_TYPE)


async def _pictured(
    request: Request,
    kind: str,
    asked: Any,
    view: Callable[[Any, MeasuredTrace], Any],
    wait_s: float,
    *,
    slow: bool = False,
) -> Response:
    """Answer at once what is quick, in a thread what is ``slow`` or longer, and have a job do the rest."""
    facts = await _quick_facts(request, asked.source)
    if facts is None:
        return await submitted(request, kind, asked, wait_s)
    cache: ReplyCache = request.app.state.replies
    key = (kind, asked.model_dump_json())
    if cache.holds(key) or not (slow or facts.trace.access_count > _INLINE):
        return cache.reply(key, lambda: view(asked, facts))
    found = await asyncio.to_thread(view, asked, facts)
    return cache.reply(key, lambda: found)


async def _quick_facts(request: Request, source: Workload | str) -> MeasuredTrace | None:
    """Return the facts of a trace that is short enough to be replayed now, None of a longer one.

    Raises Problem where it is absent or longer than is taken.
    """
    limit = request.app.state.settings.limits.quick_accesses
    held: HeldTraces = request.app.state.held
    if isinstance(source, Workload):
        expected = _expected(request, source)
        key = source.model_dump_json()
        facts = held.get(key)
        if facts is None and expected <= _LOOSENESS * limit:
            quick = expected <= _INLINE
            facts = held.put(key, source.trace() if quick else await asyncio.to_thread(source.trace))
        return facts if facts is not None and facts.trace.access_count <= limit else None
    database: Database = request.app.state.database
    if await asyncio.to_thread(_stored_length, database, source) > limit:
        return None
    facts = held.get(source) or held.put(source, await asyncio.to_thread(trace_of, database, source))
    return facts if len(facts.trace) <= _LOOSENESS * limit else None  # there may be many frees


async def require_source(request: Request, source: Workload | str) -> None:
    """Raise Problem where a trace is absent or longer than is taken."""
    if isinstance(source, Workload):
        _expected(request, source)
    else:
        await asyncio.to_thread(_stored_length, request.app.state.database, source)


def _expected(request: Request, workload: Workload) -> int:
    settings: ServiceSettings = request.app.state.settings
    expected, limit = workload.expected_accesses(), settings.limits.accesses
    if expected > limit:
        raise too_large("accesses of the trace", expected, limit, "take fewer layers, steps or experts")
    return expected


def _stored_length(database: Database, digest: str) -> int:
    """Return how many accesses, buffers or steps a stored trace has, whichever are most."""
    columns = (StoredTrace.accesses, StoredTrace.buffers, StoredTrace.steps)
    with database.session() as session:
        found = session.execute(select(*columns).where(StoredTrace.digest == digest)).first()
    if found is None:
        raise absent(digest)
    return max(found)
