"""Estimates, plans and captures over HTTP, as jobs: they load torch, which the service never does."""

from __future__ import annotations

from typing import Annotated

import orjson
from fastapi import APIRouter, Body, Request, Response

from accelera._extras import require
from accelera.service.database import Database
from accelera.service.model_schemas import Capturing, Estimating, OffloadPlanning, Planning, ProductPlanning
from accelera.service.problems import documented
from accelera.service.submission import STATUSES, Fresh, Wait, submit_job
from accelera.service.trace_store import has_trace

router = APIRouter(tags=["models"], responses={**documented(401, 422, 500), **STATUSES})


@router.post("/estimate", summary="Estimate what a model takes in memory")
async def estimate(request: Request, body: Estimating, wait: Wait = 0, fresh: Fresh = False) -> Response:
    """Return weights, activations, gradients, optimizer state and cache, by phase and element type.

    With a budget, phases say whether they fit, and ``offload`` what offloading would do for the others.
    """
    _require_torch("estimate")
    return await submit_job(request, "estimate", body, wait, fresh)


@router.post("/plan", summary="Plan a product or an offloaded model within a budget")
async def plan(
    request: Request,
    asked: Annotated[Planning, Body()],
    wait: Wait = 0,
    fresh: Fresh = False,
) -> Response:
    """Return the schedule, peak memory, bytes moved and time; or ``fits: false``, and what is needed.

    A product is planned from shapes: no file is read or made.
    """
    body: ProductPlanning | OffloadPlanning = asked
    if isinstance(body, OffloadPlanning):
        _require_torch("plan")
    return await submit_job(request, "plan", body, wait, fresh)


@router.post("/captures", summary="Capture the trace of a model")
async def capture(request: Request, body: Capturing, wait: Wait = 0, fresh: Fresh = False) -> Response:
    """Follow a model by its shapes, store its trace, and return the digest to ask further with.

    Nothing is downloaded, and no weights are made: see ``/traces/{digest}`` for the trace.
    """
    _require_torch("capture")
    database: Database = request.app.state.database

    def is_stored(result: bytes) -> bool:
        return has_trace(database, orjson.loads(result)["digest"])

    return await submit_job(request, "capture", body, wait, fresh, is_valid=is_stored)


def _require_torch(op: str) -> None:
    """Raise BackendMissingError, which names the extra, where the packages are absent."""
    require(op, "torch", "transformers")
