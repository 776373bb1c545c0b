"""Metrics of the service for Prometheus, in a registry of its own for each application."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, final

from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import func, select
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from accelera.service.database import Database, StoredJob
from accelera.service.problems import documented
from accelera.service.settings import ENDED
from accelera.service.trace_store import stored_bytes

if TYPE_CHECKING:
    from accelera.service.replies import ReplyCache

METHODS = frozenset({"GET", "POST", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS"})
STATES = (*sorted(ENDED), "queued", "running")
_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@final
class Metrics:
    """Registry of one application: counters of requests, and gauges that are read from its database."""

    def __init__(self, app: FastAPI) -> None:
        self.registry = CollectorRegistry()
        labels = ("method", "route", "status")
        self.requests = Counter(
            "accelera_requests", "Requests answered, by route template.", labels, registry=self.registry
        )
        self.seconds = Histogram(
            "accelera_request_seconds",
            "Seconds from a request to the end of its reply; event streams are long.",
            ("method", "route"),
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self.registry.register(_StateCollector(app))

    def content(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)


@final
class _StateCollector(Collector):
    """Collector of the state of the database and the caches at the time of a scrape."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    def describe(self) -> Iterable[Metric]:
        """Return nothing: there is no database yet when this is registered."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Yield the present values."""
        database: Database = self._app.state.database
        with database.session() as session:
            counted = session.execute(select(StoredJob.state, func.count()).group_by(StoredJob.state)).all()
            results = session.scalar(select(func.coalesce(func.sum(func.length(StoredJob.result)), 0))) or 0
            traces = stored_bytes(session)
        states = {row[0]: row[1] for row in counted}
        jobs = GaugeMetricFamily("accelera_jobs", "Jobs of all replicas, by state.", labels=["state"])
        for state in STATES:
            jobs.add_metric([state], states.get(state, 0))
        yield jobs
        queued = states.get("queued", 0)
        yield GaugeMetricFamily("accelera_queue_length", "Jobs that wait.", value=queued)
        stored = GaugeMetricFamily("accelera_stored_bytes", "Bytes in the database.", labels=["kind"])
        stored.add_metric(["traces"], traces)
        stored.add_metric(["results"], int(results))
        yield stored
        cache: ReplyCache = self._app.state.replies
        hits = CounterMetricFamily("accelera_cache_hits", "Replies that were known.", labels=["cache"])
        hits.add_metric(["replies"], cache.hits)
        hits.add_metric(["results"], self._app.state.reused)
        yield hits


class MetricsMiddleware:
    """Middleware that counts and times requests by the template of their route."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and count it when it is over."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, began_s = 500, time.perf_counter()

        async def send_noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_noting_status)
        finally:
            method = scope["method"] if scope["method"] in METHODS else "other"
            route = template_of(scope)
            self._metrics.requests.labels(method, route, str(status)).inc()
            self._metrics.seconds.labels(method, route).observe(time.perf_counter() - began_s)


def template_of(scope: Scope) -> str:
    """Return the path template of the route; some versions of FastAPI leave out the prefix ``/v1``."""
    path = getattr(scope.get("route"), "path", "none")
    versioned = scope["path"].startswith("/v1/") and path.startswith("/") and not path.startswith("/v1/")
    return f"/v1{path}" if versioned else path


def add_metrics(app: FastAPI) -> None:
    """Count the requests to ``app``, and add the endpoints ``/metrics`` and ``/v1/metrics``."""
    app.state.metrics = metrics = Metrics(app)

    async def tell(_: Request) -> Response:
        """Return the metrics in the text format of Prometheus."""
        content = await asyncio.to_thread(metrics.content)
        return Response(content, media_type=CONTENT_TYPE_LATEST)

    plain_text: dict[int | str, Any] = {
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "The metrics"}
    }
    for path in ("/v1/metrics", "/metrics"):
        app.add_api_route(
            path,
            tell,
            summary="Tell Prometheus",
            tags=["service"],
            response_class=Response,
            responses={**plain_text, **documented(401, 500)},
            include_in_schema=path.startswith("/v1"),
        )
    app.add_middleware(MetricsMiddleware, metrics=metrics)
