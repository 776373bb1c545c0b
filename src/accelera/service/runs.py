"""Runs over HTTP: kept, listed, described and deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import AfterValidator, Field, StringConstraints
from sqlalchemy import delete, func, select

from accelera.errors import ArgumentError
from accelera.service.database import Database, StoredRun
from accelera.service.history import keep
from accelera.service.problems import Problem, documented
from accelera.service.replies import json_bytes
from accelera.service.schemas import Strict, with_example
from accelera.service.settings import ServiceSettings

router = APIRouter(prefix="/runs", tags=["history"], responses=documented(401, 422, 500))

OBJECT_BYTES = 16_384
"""Most bytes of a run's request, and of its figures, as JSON."""
_RECORD_COLUMNS = ("id", "created_s", "kind", "title", "headline", "request", "figures", "trace", "job")


def _checked_object(value: dict[str, Any]) -> dict[str, Any]:
    """Return ``value`` as JSON stores it; raises ValueError for no JSON object, or one that is too large."""
    try:
        content = orjson.dumps(value)
    except TypeError as error:
        raise ArgumentError(f"it is no JSON object: {error}") from error
    if len(content) > OBJECT_BYTES:
        raise ArgumentError(
            f"{len(content):,} bytes of at most {OBJECT_BYTES:,}; keep figures, and no series"
        )
    found: dict[str, Any] = orjson.loads(content)
    return found


JsonObject = Annotated[dict[str, Any], AfterValidator(_checked_object)]
Line = StringConstraints(pattern=r"^[^\x00-\x1f\x7f]*$")
RunId = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]
KindName = Annotated[str, StringConstraints(pattern="^[a-z][a-z_-]{0,39}$")]
_EXAMPLE: Any = {
    "kind": "fit",
    "title": "7B, decode, 12 GB",
    "request": {"source": {"mode": "decode", "num_layers": 32}, "budget": "12GB"},
    "headline": "It needs 14.0 GB; you are 2.0 GB short.",
    "figures": {"needs_bytes": 14_000_000_000, "slowdown": 1.4},
}


class KeptRun(Strict):
    """A run to keep."""

    kind: KindName = Field(description="what was asked: fit, simulate, advise, sweep, …")
    title: Annotated[str, Line] | None = Field(None, max_length=200, description="the kind by default")
    request: JsonObject = Field(description="what asks the same again; at most 16,384 bytes as JSON")
    headline: Annotated[str, Line] = Field("", max_length=500, description="the answer in a sentence")
    figures: JsonObject = Field(
        default_factory=dict, description="what runs are compared by; at most 16,384 bytes as JSON"
    )

    model_config = with_example(**_EXAMPLE)


@router.get("", summary="List runs, newest first")
async def list_runs(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
    kind: Annotated[KindName | None, Query(description="runs of this kind alone")] = None,
) -> Response:
    """Return the runs with their requests and figures, and how many there are."""

    def listed() -> dict[str, Any]:
        of_kind = [] if kind is None else [StoredRun.kind == kind]
        newest = select(StoredRun).where(*of_kind).order_by(StoredRun.created_s.desc(), StoredRun.id)
        with _database(request).session() as session:
            found = session.scalars(newest.limit(limit).offset(offset)).all()
            total = session.scalar(select(func.count()).select_from(StoredRun).where(*of_kind))
        return {"total": total, "runs": [run_record(run) for run in found]}

    return _json(await asyncio.to_thread(listed))


@router.post("", status_code=201, summary="Keep a run", responses=documented(413))
async def keep_run(request: Request, body: KeptRun) -> Response:
    """Keep what a caller was shown; ``trace`` is set where the request names a stored one."""
    settings: ServiceSettings = request.app.state.settings

    def store() -> StoredRun:
        with _database(request).session() as session:
            fields = body.model_dump()
            return keep(
                session, StoredRun(**{**fields, "title": body.title or body.kind}), settings.limits.runs
            )

    run = await asyncio.to_thread(store)
    location = f"{request.url.path.rstrip('/')}/{run.id}"
    return _json(run_record(run), HTTPStatus.CREATED, {"Location": location})


@router.get("/{id}", summary="Describe a run", responses=documented(404))
async def describe_run(request: Request, id: RunId) -> Response:
    """Return a run."""

    def load() -> StoredRun | None:
        with _database(request).session() as session:
            return session.get(StoredRun, id)

    run = await asyncio.to_thread(load)
    if run is None:
        raise _run_not_found(id)
    return _json(run_record(run))


@router.delete("/{id}", status_code=204, summary="Delete a run", responses=documented(404))
async def delete_run(request: Request, id: RunId) -> Response:
    """Forget a run; its job and its trace stay."""

    def deleted() -> int:
        with _database(request).session() as session:
            result: Any = session.execute(delete(StoredRun).where(StoredRun.id == id))
            return int(result.rowcount)

    if not await asyncio.to_thread(deleted):
        raise _run_not_found(id)
    return Response(status_code=204)


def run_record(run: StoredRun) -> dict[str, Any]:
    """Return a run as replies contain it."""
    return {name: getattr(run, name) for name in _RECORD_COLUMNS}


def _run_not_found(id: str) -> Problem:
    return Problem(HTTPStatus.NOT_FOUND, f"there is no run {id}; GET /v1/runs lists what there is")


def _json(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json_bytes(content), int(status), headers, "application/json")


def _database(request: Request) -> Database:
    database: Database = request.app.state.database
    return database
