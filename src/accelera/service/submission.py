"""Submission of a job: the reply is a stored result, the job's result within a wait, or the job."""

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
"""Columns of a job that replies contain."""
_LOCATION = {"Location": {"description": "the job", "schema": {"type": "string"}}}
STATUSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "The result", "headers": _LOCATION},
    202: {"description": "A job that is not done yet", "headers": _LOCATION},
    **documented(413, 501, 503),
}
"""OpenAPI responses of an endpoint that submits a job, beside those of every endpoint."""
_POLL_S = 0.02


def job_record(job: StoredJob) -> dict[str, Any]:
    """Return a job as replies contain it."""
    return {name: getattr(job, name) for name in JOB_FIELDS}


def job_with_request(job: StoredJob) -> dict[str, Any]:
    """Return ``job_record`` with the job's request; None instead of a request of over 16,384 bytes."""
    request = job.request if len(json_bytes(job.request)) <= OBJECT_BYTES else None
    return {**job_record(job), "request": request}


async def job_with_position(queue: JobQueue, job: StoredJob) -> dict[str, Any]:
    """Return ``job_record``; while the job is queued, ``doing`` says how many jobs are before it."""
    record = job_record(job)
    if job.state == "queued" and (count := await asyncio.to_thread(queue.count_ahead, job)):
        record["doing"] = f"waits for {count} job{'s' * (count > 1)} before it"
    return record


async def submit_job(
    request: Request,
    kind: str,
    body: BaseModel,
    wait_s: float = 0,
    fresh: bool = False,
    *,
    is_valid: Callable[[bytes], bool] = lambda _: True,
) -> Response:
    """Reply with the result of a job of ``kind``, or after ``wait_s`` with the job.

    A stored result of an equal request is returned at once if ``is_valid`` accepts it, unless ``fresh`` asks
    for a new one. Both replies name the job in ``Location``.
    """
    queue: JobQueue = request.app.state.queue
    payload = body.model_dump(mode="json")
    cached = None if fresh else await asyncio.to_thread(queue.find_result, kind, payload)
    if cached is not None and await asyncio.to_thread(is_valid, cached[1]):
        request.app.state.reused += 1
        return _reply(request, cached[0], cached[1])
    await _check_queue_length(request, queue)
    id = await asyncio.to_thread(queue.submit, kind, payload)
    job = await _wait_for_end(request, queue, id, wait_s)
    result = await asyncio.to_thread(queue.result, id) if job is not None and job.state == "done" else None
    if result is not None:
        return _reply(request, id, result)
    if job is None:
        raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, "the job was deleted meanwhile; ask again", job=id)
    if job.state == "failed":
        error = job.error or FAULT
        refusal = HTTPStatus.UNPROCESSABLE_ENTITY
        raise Problem(HTTPStatus.INTERNAL_SERVER_ERROR if error.startswith(FAULT) else refusal, error, job=id)
    return _reply(request, id, json_bytes(await job_with_position(queue, job)), HTTPStatus.ACCEPTED)


async def _check_queue_length(request: Request, queue: JobQueue) -> None:
    settings: ServiceSettings = request.app.state.settings
    most = settings.limits.waiting_jobs
    if await asyncio.to_thread(queue.queued_count) >= most:
        raise Problem(
            HTTPStatus.SERVICE_UNAVAILABLE,
            f"{most} jobs wait already, the most that may; try again when some are done",
            limit=most,
        )


async def _wait_for_end(request: Request, queue: JobQueue, id: str, wait_s: float) -> StoredJob | None:
    """Return the job once it has ended, the wait is over or the service stops; None when it was deleted."""
    stopping: asyncio.Event = request.app.state.stopping
    deadline = time.monotonic() + wait_s
    job = await asyncio.to_thread(queue.find, id)
    while (
        job is not None and job.state not in ENDED and time.monotonic() < deadline and not stopping.is_set()
    ):
        await asyncio.sleep(_POLL_S)
        job = await asyncio.to_thread(queue.find, id)
    return job


def _reply(request: Request, id: str, content: bytes, status: HTTPStatus = HTTPStatus.OK) -> Response:
    location = f"{request.scope.get('root_path', '')}/v1/jobs/{id}"
    return Response(content, int(status), {"Location": location}, MEDIA_TYPE)
