"""Stored traces: uploaded, listed, downloaded and deleted; the same contents are stored once."""

from __future__ import annotations

import asyncio
import tempfile
from http import HTTPStatus
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from sqlalchemy import delete, func, select

from accelera.service.database import Database, StoredTrace
from accelera.service.parser_process import FORMATS as PARSED
from accelera.service.problems import Problem, documented
from accelera.service.replies import json_bytes
from accelera.service.trace_store import store, trace_record
from accelera.service.upload_parser import UploadParser
from accelera.trace._internal import FORMATS

router = APIRouter(prefix="/traces", tags=["traces"], responses=documented(401, 422, 500))

Digest = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="SHA-256 of the contents")]
Name = Annotated[str, Query(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f/\\]+$")]
FormatName = Annotated[
    Literal[PARSED] | None,  # type: ignore[valid-type]
    Query(description="what the body is; by the end of the name when absent"),
]
_PARQUET = "application/vnd.apache.parquet"
_BODY = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}


@router.post(
    "",
    status_code=201,
    summary="Store a trace",
    openapi_extra={"requestBody": {**_BODY, "required": True}},
    responses={200: {"description": "It was stored already"}, **documented(413, 503)},
)
async def store_trace(request: Request, name: Name, format: FormatName = None) -> Response:
    """Store the trace in the body: Parquet, CSV, JSON, a memory snapshot of PyTorch, or of libCacheSim."""
    chosen = format or _format_of(name)
    if chosen is None:
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            f"{name!r} does not end as a trace's file does; name the format: {', '.join(PARSED)}",
        )
    state = request.app.state
    most = state.settings.limits.uploads
    if state.receiving >= most:
        raise Problem(
            HTTPStatus.SERVICE_UNAVAILABLE, f"{most} uploads at once; try again in a moment", limit=most
        )
    state.receiving += 1
    try:
        # Files without names: nothing of them is left behind, even by a service that is killed.
        with tempfile.TemporaryFile() as upload, tempfile.TemporaryFile() as out:
            async for part in request.stream():
                upload.write(part)
            upload.flush()
            if not upload.tell():
                raise Problem(
                    HTTPStatus.UNPROCESSABLE_ENTITY, "the body is empty; send the trace's file in it"
                )
            parser: UploadParser = state.parser
            async with state.parsers:
                facts = await asyncio.to_thread(parser.parse, upload.fileno(), chosen, name, out.fileno())
            return await asyncio.to_thread(_store_upload, request, name, facts, out.read())
    finally:
        state.receiving -= 1


@router.get("", summary="List stored traces, newest first")
async def list_traces(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    offset: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
) -> Response:
    """Return what is stored, without contents."""

    def listed() -> dict[str, Any]:
        newest = select(StoredTrace).order_by(StoredTrace.created_s.desc(), StoredTrace.digest)
        with _database(request).session() as session:
            stored = session.scalars(newest.limit(limit).offset(offset)).all()
            total = session.scalar(select(func.count()).select_from(StoredTrace))
        return {"total": total, "traces": [trace_record(one) for one in stored]}

    return Response(json_bytes(await asyncio.to_thread(listed)), media_type="application/json")


@router.get("/{digest}", summary="Describe a stored trace", responses=documented(404))
async def describe_trace(request: Request, digest: Digest) -> Response:
    """Return what a stored trace holds."""
    stored = await asyncio.to_thread(_stored_trace, request, digest)
    return Response(json_bytes(trace_record(stored)), media_type="application/json")


@router.get(
    "/{digest}/content",
    summary="Download a stored trace",
    response_class=Response,
    responses={200: {"content": {_PARQUET: {}}, "description": "The trace as Parquet"}, **documented(404)},
)
async def download_trace(request: Request, digest: Digest) -> Response:
    """Return a stored trace as Parquet."""

    def content() -> bytes:
        with _database(request).session() as session:
            stored = session.get(StoredTrace, digest)
            if stored is None:
                raise trace_not_found(digest)
            return stored.parquet

    headers = {"Content-Disposition": f'attachment; filename="{digest[:16]}.parquet"'}
    return Response(await asyncio.to_thread(content), media_type=_PARQUET, headers=headers)


@router.delete("/{digest}", status_code=204, summary="Delete a stored trace", responses=documented(404))
async def delete_trace(request: Request, digest: Digest) -> Response:
    """Delete a trace; what was found out about it stays."""

    def deleted() -> int:
        with _database(request).session() as session:
            result: Any = session.execute(delete(StoredTrace).where(StoredTrace.digest == digest))
            return int(result.rowcount)

    if not await asyncio.to_thread(deleted):
        raise trace_not_found(digest)
    return Response(status_code=204)


def _store_upload(request: Request, name: str, facts: dict[str, Any], content: bytes) -> Response:
    found, is_new = store(_database(request), name, facts, content)
    location = f"{request.url.path.rstrip('/')}/{facts['digest']}"
    status = HTTPStatus.CREATED if is_new else HTTPStatus.OK
    return Response(json_bytes(found), int(status), {"Location": location}, "application/json")


def _stored_trace(request: Request, digest: str) -> StoredTrace:
    with _database(request).session() as session:
        stored = session.get(StoredTrace, digest)
    if stored is None:
        raise trace_not_found(digest)
    return stored


def trace_not_found(digest: str) -> Problem:
    """Return the Problem (404) for a digest that is not stored."""
    return Problem(HTTPStatus.NOT_FOUND, f"there is no trace {digest}; GET /v1/traces lists what there is")


def _format_of(name: str) -> str | None:
    """Return the format with the longest suffix that ``name`` ends in; None when none fits."""
    suffixes = [(len(end), end.lower(), each) for each in PARSED for end in FORMATS[each].suffixes]
    matches = [(length, each) for length, end, each in suffixes if name.lower().endswith(end)]
    return max(matches)[1] if matches else None


def _database(request: Request) -> Database:
    database: Database = request.app.state.database
    return database
