"""Analyses as jobs: submitted, watched by server-sent events, cancelled, run again; their results stay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from sse_starlette import EventSourceResponse, ServerSentEvent

from accelera.service.database import StoredJob
from accelera.service.fit import require_source
from accelera.service.jobs import JobQueue
from accelera.service.problems import Problem, documented
from accelera.service.replies import json_bytes
from accelera.service.schemas import AdviceRequest, BoundsRequest, SweepRequest
from accelera.service.settings import ENDED
from accelera.service.submission import (
    STATUSES,
    Fresh,
    Wait,
    job_record,
    job_with_position,
    job_with_request,
    submit_job,
)

router = APIRouter(tags=["jobs"], responses=documented(401, 422, 500))

JobId = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]
_POLL_S = 0.1
_STATUSES = {**STATUSES, **documented(404)}


@router.post("/sweeps", summary="Replay a trace under many policies at many capacities", responses=_STATUSES)
async def sweep(request: Request, body: SweepRequest, wait: Wait = 0, fresh: Fresh = False) -> Response:
    """Return what every policy moves at every capacity, or the job that will."""
    await require_source(request, body.source)
    return await submit_job(request, "sweep", body, wait, fresh)


@router.post("/bounds", summary="Find the least bytes that any schedule moves", responses=_STATUSES)
async def bounds(request: Request, body: BoundsRequest, wait: Wait = 0, fresh: Fresh = False) -> Response:
    """Return the lower bound at each capacity, or the job that will."""
    await require_source(request, body.source)
    return await submit_job(request, "bounds", body, wait, fresh)


@router.post("/advise", summary="Say what to do in less memory than a trace needs", responses=_STATUSES)
async def advise(request: Request, body: AdviceRequest, wait: Wait = 0, fresh: Fresh = False) -> Response:
    """Return which policy to use, how far ahead to load and what to keep, or the job that will."""
    await require_source(request, body.source)
    return await submit_job(request, "advise", body, wait, fresh)


@router.get("/jobs", summary="List jobs, newest first")
async def list_jobs(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
) -> Response:
    """Return the jobs of all replicas, without results."""
    found = await asyncio.to_thread(_queue(request).latest, limit, offset)
    return _json({"jobs": [job_with_request(job) for job in found]})


@router.get("/jobs/{id}", summary="Say how far a job is", responses=documented(404))
async def describe_job(request: Request, id: JobId) -> Response:
    """Return a job's state, progress and error."""
    job = await _job(request, id)
    return _json({**job_with_request(job), **await job_with_position(_queue(request), job)})


@router.get("/jobs/{id}/result", summary="Return a job's result", responses=documented(404, 409))
async def job_result(request: Request, id: JobId) -> Response:
    """Return what a job found; 409 while it has found nothing."""
    job = await _job(request, id)
    if job.state != "done":
        why = f": {job.error}" if job.error else ""
        raise Problem(HTTPStatus.CONFLICT, f"the job is {job.state}{why}", state=job.state)
    result = await asyncio.to_thread(_queue(request).result, id)
    if result is None:
        raise _absent(id)
    return Response(result, media_type="application/json")


@router.get(
    "/jobs/{id}/events",
    summary="Watch a job",
    responses={
        200: {"content": {"text/event-stream": {}}, "description": "An event per change"},
        204: {"description": "It has ended, and Last-Event-ID is its last change: there is nothing to watch"},
        **documented(404),
    },
)
async def watch_job(request: Request, id: JobId) -> Response:
    """Send the job as it is after every change, until it has ended.

    Events are numbered; a client that comes again with ``Last-Event-ID`` gets later changes alone.
    """
    job = await _job(request, id)
    told = request.headers.get("last-event-id", "")
    seen = int(told) if told.isdecimal() and len(told) < 10 else -1
    if job.state in ENDED and seen >= job.sequence:
        return Response(status_code=HTTPStatus.NO_CONTENT)
    stopping: asyncio.Event = request.app.state.stopping
    return EventSourceResponse(_events(_queue(request), id, seen, stopping))


@router.post("/jobs/{id}/cancel", status_code=202, summary="Cancel a job", responses=documented(404, 409))
async def cancel_job(request: Request, id: JobId) -> Response:
    """Cancel what waits at once, and what runs within about a second."""
    return await _changed(request, id, _queue(request).cancel, "has ended; there is nothing to cancel")


@router.post("/jobs/{id}/rerun", status_code=202, summary="Run a job again", responses=documented(404, 409))
async def rerun_job(request: Request, id: JobId) -> Response:
    """Queue a job again that failed, was cancelled or interrupted."""
    return await _changed(request, id, _queue(request).rerun, "is under way or done; submit it anew")


@router.delete("/jobs/{id}", status_code=204, summary="Delete a job", responses=documented(404, 409))
async def delete_job(request: Request, id: JobId) -> Response:
    """Forget a job that has ended, and its result."""
    await _changed(request, id, _queue(request).delete, "is under way; cancel it first")
    return Response(status_code=204)


async def _events(
    queue: JobQueue, id: str, seen: int, stopping: asyncio.Event
) -> AsyncIterator[ServerSentEvent]:
    while not stopping.is_set():
        job = await asyncio.to_thread(queue.find, id)
        if job is None:
            return
        if job.sequence > seen:
            seen = job.sequence
            yield ServerSentEvent(
                json_bytes(await job_with_position(queue, job)).decode(), event=job.state, id=str(seen)
            )
        if job.state in ENDED:
            return
        await asyncio.sleep(_POLL_S)


async def _changed(request: Request, id: str, change: Any, refused: str) -> Response:
    if not await asyncio.to_thread(change, id):
        job = await _job(request, id)
        raise Problem(HTTPStatus.CONFLICT, f"the job is {job.state}, and {refused}", state=job.state)
    found: StoredJob | None = await asyncio.to_thread(_queue(request).find, id)
    return _json({} if found is None else job_record(found), HTTPStatus.ACCEPTED)


async def _job(request: Request, id: str) -> StoredJob:
    job: StoredJob | None = await asyncio.to_thread(_queue(request).find, id)
    if job is None:
        raise _absent(id)
    return job


def _absent(id: str) -> Problem:
    return Problem(HTTPStatus.NOT_FOUND, f"there is no job {id}; GET /v1/jobs lists what there is")


def _json(content: Any, status: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(json_bytes(content), int(status), media_type="application/json")


def _queue(request: Request) -> JobQueue:
    queue: JobQueue = request.app.state.queue
    return queue
