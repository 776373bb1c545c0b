"""The service as an ASGI application."""

from __future__ import annotations

import asyncio
import tempfile
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fastapi import FastAPI, Response
from fastapi.openapi.utils import get_openapi
from sse_starlette.sse import AppStatus

from accelera import __version__
from accelera.service import problems
from accelera.service.analyses import router as analyses
from accelera.service.database import Database, sqlite_url
from accelera.service.fit import router as fit
from accelera.service.gate import RequestGate
from accelera.service.hardware import Inventory
from accelera.service.hardware import router as hardware
from accelera.service.jobs import JobQueue
from accelera.service.metrics import add_metrics
from accelera.service.models import router as models
from accelera.service.replies import ReplyCache, json_bytes
from accelera.service.runs import router as runs
from accelera.service.settings import ServiceSettings
from accelera.service.simulation import router as simulation
from accelera.service.trace_store import TraceCache
from accelera.service.traces import router as traces
from accelera.service.traffic import TrafficLimiter
from accelera.service.upload_parser import UploadParser
from accelera.service.workers import Workers
from accelera.simulator import generate_synthetic_trace, score, simulate, validate_trace


class _LinkedOperation(NamedTuple):
    """Target of an OpenAPI link: an operation that takes the id or digest that a reply contains."""

    method: str
    path: str
    parameter: str | None
    """Name of its path parameter; None where the digest goes into its body as ``source``."""


_TRACE_LINKS = {
    "describe": _LinkedOperation("get", "/v1/traces/{digest}", "digest"),
    "download": _LinkedOperation("get", "/v1/traces/{digest}/content", "digest"),
    "delete": _LinkedOperation("delete", "/v1/traces/{digest}", "digest"),
    "sweep": _LinkedOperation("post", "/v1/sweeps", None),
    "advise": _LinkedOperation("post", "/v1/advise", None),
    "bound": _LinkedOperation("post", "/v1/bounds", None),
    "fit": _LinkedOperation("post", "/v1/fit", None),
    "curves": _LinkedOperation("post", "/v1/curves", None),
    "timeline": _LinkedOperation("post", "/v1/timeline", None),
}
_JOB_LINKS = {
    "describe": _LinkedOperation("get", "/v1/jobs/{id}", "id"),
    "result": _LinkedOperation("get", "/v1/jobs/{id}/result", "id"),
    "watch": _LinkedOperation("get", "/v1/jobs/{id}/events", "id"),
    "cancel": _LinkedOperation("post", "/v1/jobs/{id}/cancel", "id"),
    "rerun": _LinkedOperation("post", "/v1/jobs/{id}/rerun", "id"),
    "delete": _LinkedOperation("delete", "/v1/jobs/{id}", "id"),
}
_RUN_LINKS = {
    "describe": _LinkedOperation("get", "/v1/runs/{id}", "id"),
    "delete": _LinkedOperation("delete", "/v1/runs/{id}", "id"),
}


def add_links(schema: dict[str, Any]) -> None:
    """Link replies of ``schema`` that name a trace, a job or a run to the operations that take it."""
    for path, operations in schema["paths"].items():
        for status, reply in operations.get("post", {}).get("responses", {}).items():
            if path == "/v1/traces" and status in ("200", "201"):
                _link(schema, reply, _TRACE_LINKS)
            elif path == "/v1/runs" and status == "201":
                _link(schema, reply, _RUN_LINKS)
            elif status == "202":
                _link(schema, reply, _JOB_LINKS)


def _link(schema: dict[str, Any], reply: dict[str, Any], operations: dict[str, _LinkedOperation]) -> None:
    links = reply.setdefault("links", {})
    for name, each in operations.items():
        operation = schema["paths"].get(each.path, {}).get(each.method)
        if operation is None:
            continue
        link: dict[str, Any] = {"requestBody": {"source": "$response.body#/digest"}}
        if each.parameter is not None:
            link = {"parameters": {each.parameter: f"$response.body#/{each.parameter}"}}
        links[name] = {"operationId": operation["operationId"], **link}


PREFIX = "/v1"
PARSERS = 2
"""Uploads that are parsed at once."""
SLOW = 2
"""Requests whose replies are computed in threads at once."""
DESCRIPTION = "Simulates tensor accesses in memory hierarchies, and tells what less memory would cost."


def create_app(settings: ServiceSettings | None = None) -> FastAPI:
    """Return the application; its paths are under ``/v1``, those of the seed also without."""
    chosen = settings or ServiceSettings()
    app = FastAPI(
        title="Accelera Copilot",
        version=__version__,
        description=DESCRIPTION,
        lifespan=_lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.settings = chosen
    app.state.replies = ReplyCache(chosen.limits.cached_replies, chosen.limits.cached_bytes)
    app.state.slow = asyncio.Semaphore(SLOW)
    app.state.trace_cache = TraceCache()
    app.state.reused = 0
    app.state.inventory = Inventory()
    app.state.ready = False
    app.state.stopping = asyncio.Event()  # set here: a signal may arrive before the lifespan begins
    app.state.on_ready = lambda: None
    problems.add_handlers(app)
    app.state.parsers = asyncio.Semaphore(PARSERS)
    app.state.receiving = 0
    app.state.parser = UploadParser(chosen.limits.stored_accesses)
    for router in (simulation, fit, traces, analyses, runs, hardware, models):
        app.include_router(router, prefix=PREFIX)
    app.include_router(simulation, include_in_schema=False)
    for path in (f"{PREFIX}/health", "/health"):
        app.add_api_route(path, _health(app), include_in_schema=path.startswith(PREFIX), tags=["service"])
    app.add_middleware(RequestGate, settings=chosen)
    app.add_middleware(TrafficLimiter, settings=chosen)
    add_metrics(app)  # outermost, so that refusals count
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the database, warm up what a first request needs, and run workers until the service ends."""
    settings: ServiceSettings = app.state.settings
    app.state.stopping.clear()
    AppStatus.should_exit = False  # stays set after a signal has ended an earlier service of this process
    with tempfile.TemporaryDirectory(prefix="accelera-service-") as folder:
        url = settings.database_url or sqlite_url(Path(folder) / "copilot.db")
        app.state.database = database = Database(url, limits=settings.limits)
        app.state.queue = JobQueue(database)
        workers = Workers(database, settings.workers, settings.ray_address)
        try:
            app.state.parser.start()
            _warm_up()
            app.state.ready = True
            app.state.on_ready()
            workers.start()  # last: a start that fails takes no job
            yield
        finally:
            app.state.ready = False
            app.state.stopping.set()
            await asyncio.to_thread(workers.stop)
            app.state.parser.close()
            database.close()


def _warm_up() -> None:
    trace = generate_synthetic_trace(num_layers=1)
    simulate(trace, "copilot", "lru")
    score(trace, "heuristic")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        validate_trace(trace)


def _health(app: FastAPI) -> Any:
    async def health() -> Response:
        """Return whether requests are answered, and the version."""
        content = {"status": "ok" if app.state.ready else "starting", "version": __version__}
        return Response(json_bytes(content), media_type="application/json")

    return health


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        schema = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        problems.document_traffic(schema)
        schema.setdefault("components", {}).setdefault("schemas", {})["Problem"] = problems.SCHEMA
        add_links(schema)
        app.openapi_schema = schema
    return app.openapi_schema
