"""The service as an ASGI application."""

from __future__ import annotations

import asyncio
import tempfile
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Response
from fastapi.openapi.utils import get_openapi
from sse_starlette.sse import AppStatus

from accelera import __version__
from accelera.service import problems
from accelera.service.analyses import router as analyses
from accelera.service.database import Database, sqlite_url
from accelera.service.fit import router as fit
from accelera.service.gate import Gate
from accelera.service.hardware import Inventory
from accelera.service.hardware import router as hardware
from accelera.service.held import HeldTraces
from accelera.service.jobs import JobQueue
from accelera.service.links import add_links
from accelera.service.metrics import add_metrics
from accelera.service.planning import router as planning
from accelera.service.replies import ReplyCache, json_bytes
from accelera.service.runs import router as runs
from accelera.service.settings import ServiceSettings
from accelera.service.simulation import router as simulation
from accelera.service.traces import router as traces
from accelera.service.traffic import Traffic
from accelera.service.upload_parser import UploadParser
from accelera.service.workers import Workers
from accelera.simulator import generate_synthetic_trace, score, simulate, validate_trace

PREFIX = "/v1"
PARSERS = 2
"""Uploads that are read at once."""
SLOW = 2
"""Requests at once whose answers take a thread of their own."""
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
    app.state.held = HeldTraces()
    app.state.reused = 0
    app.state.inventory = Inventory()
    app.state.ready = False
    app.state.stopping = asyncio.Event()  # here: a signal may come before anything has been opened
    app.state.on_ready = lambda: None
    problems.add_handlers(app)
    app.state.parsers = asyncio.Semaphore(PARSERS)
    app.state.receiving = 0
    app.state.parser = UploadParser(chosen.limits.stored_accesses)
    for router in (simulation, fit, traces, analyses, runs, hardware, planning):
        app.include_router(router, prefix=PREFIX)
    app.include_router(simulation, include_in_schema=False)
    for path in (f"{PREFIX}/health", "/health"):
        app.add_api_route(path, _health(app), include_in_schema=path.startswith(PREFIX), tags=["service"])
    app.add_middleware(Gate, settings=chosen)
    app.add_middleware(Traffic, settings=chosen)
    add_metrics(app)  # outermost, so that refusals count
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the database, load what a first request would wait for, and do jobs until the service ends."""
    settings: ServiceSettings = app.state.settings
    app.state.stopping.clear()
    AppStatus.should_exit = False  # set for good by a service of this process that a signal has ended
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
