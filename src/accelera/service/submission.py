"""Submission of a job: answered at once when the question was answered before, else after a wait or later."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import Query, Request, Response
from pydantic import BaseModel

from accelera.service.database import StoredJob
from accelera.service.jobs import FAULT, JobQueue
from accelera.service.problems import Problem, documented
from accelera.service.replies import MEDIA_TYPE, json_bytes
from accelera.service.runs import OBJECT_BYTES
from accelera.service.settings import ENDED, ServiceSettings

Wait = Annotated[
    float, Query(ge=0, le=30, description="seconds to wait for the result before a job is returned instead")
]
Fresh = Annotated[bool, Query(description="work it out again, though it has been answered before")]
JOB_FIELDS = (
    "id",
    "kind",
    "state",
    "created_s",
    "finished_s",
    "attempt",
    "progress",
    "doing",
    "sequence",
    "error",
)
"""What callers see of a job."""
_LOCATION = {"Location": {"description": "the job", "schema": {"type": "string"}}}
STATUSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "The result", "headers": _LOCATION},
    202: {"description": "A job that is not done yet", "headers": _LOCATION},
    **documented(413, 501, 503),
}
"""Replies of an endpoint that submits a job, beside those of every endpoint."""
_LOOK_S = 0.02


def shown(job: StoredJob) -> dict[str, Any]:
    """Return a job as callers see it."""
    return {name: getattr(job, name) for name in JOB_FIELDS}


def described(job: StoredJob) -> dict[str, Any]:
    """Return a job as ``shown``, with what was asked; None for a request of over 16,384 bytes."""
    request = job.request if len(json_bytes(job.request)) <= OBJECT_BYTES else None
    return {**shown(job), "request": request}


async def shown_now(queue: JobQueue, job: StoredJob) -> dict[str, Any]:
    """Return a job as callers see it; while it is queued, ``doing`` says how many are before it."""
    told = shown(job)
    if job.state == "queued" and (count := await asyncio.to_thread(queue.before, job)):
        told["doing"] = f"waits for {count} job{'s' * (count > 1)} before it"
    return told


async def submitted(
    request: Request,
    kind: str,
    asked: BaseModel,
    wait_s: float = 0,
    fresh: bool = False,
    *,
    holds: Callable[[bytes], bool] = lambda _: True,
) -> Response:
    """Reply with the result of a job of ``kind``, or after ``wait_s`` with the job.

    A result that is stored already is returned at once where it still ``holds``, unless it is to be
    ``fresh``. Both replies name the job in ``Location``.
    """
    queue: JobQueue = request.app.state.queue
    question = asked.model_dump(mode="json")
    known = None if fresh else await asyncio.to_thread(queue.answered, kind, question)
    if known is not None and await asyncio.to_thread(holds, known[1]):
        request.app.state.reused += 1
        return _reply(request, known[0], known[1])
    await _check_room(request, queue)
    id = await asyncio.to_thread(queue.submit, kind, question)
    job = await _awaited(request, queue, id, wait_s)
    result = await asyncio.to_thread(queue.result, id) if job is not None and job.state == "done" else None
    if result is not None:
        return _reply(request, id, result)
    if job is None:
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "the job was deleted meanwhile; ask again", job=id)
    if job.state == "failed":
        error = job.error or FAULT
        refused = HTTPStatus.UNPROCESSABLE_ENTITY
        raise Problem(HTTPStatus.INTERNAL_SERVER_ERROR if error.startswith(FAULT) else refused, error, job=id)
    return _reply(request, id, json_bytes(await shown_now(queue, job)), HTTPStatus.ACCEPTED)


async def _check_room(request: Request, queue: JobQueue) -> None:
    settings: ServiceSettings = request.app.state.settings
    most = settings.limits.waiting_jobs
    if await asyncio.to_thread(queue.waiting) >= most:
        raise Problem(
            HTTPStatus.SERVICE_UNAVAILABLE,
            f"{most} jobs wait already, the most that may; try again when some are done",
            limit=most,
        )


async def _awaited(request: Request, queue: JobQueue, id: str, wait_s: float) -> StoredJob | None:
    """Return the job when it has ended, the time is over or the service stops; None when it is deleted."""
    stopping: asyncio.Event = request.app.state.stopping
    until = time.monotonic() + wait_s
    job = await asyncio.to_thread(queue.find, id)
    while job is not None and job.state not in ENDED and time.monotonic() < until and not stopping.is_set():
        await asyncio.sleep(_LOOK_S)
        job = await asyncio.to_thread(queue.find, id)
    return job


def _reply(request: Request, id: str, content: bytes, status: HTTPStatus = HTTPStatus.OK) -> Response:
    location = f"{request.scope.get('root_path', '')}/v1/jobs/{id}"
    return Response(content, int(status), {"Location": location}, MEDIA_TYPE)
