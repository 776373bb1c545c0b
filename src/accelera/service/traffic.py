"""Limits on traffic: requests a minute by caller, and requests that are worked at together."""

from __future__ import annotations

import ipaddress
import math
import time
from http import HTTPStatus

from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import SlidingWindowCounterRateLimiter
from starlette.types import ASGIApp, Receive, Scope, Send

from accelera.service.gate import OPEN_PATHS
from accelera.service.problems import problem_reply
from accelera.service.settings import ServiceSettings

_STREAM = "/events"
"""End of the paths whose replies last as long as somebody listens: they are not work."""


class Traffic:
    """Middleware that refuses callers who ask too often (429), and everybody when too much is asked (503).

    A caller is an address; of IPv6 the first 64 bits, which one subscriber has. What a load balancer asks
    (``/health``) always passes. Each replica counts for itself.
    """

    def __init__(self, app: ASGIApp, settings: ServiceSettings) -> None:
        self._app = app
        self._most_at_once = settings.limits.concurrent_requests
        self._at_once = 0
        rate = settings.requests_per_minute
        self._rate = RateLimitItemPerMinute(rate) if rate else None
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
        elif self._rate is not None and not self._limiter.hit(self._rate, caller(scope)):
            await self._too_often(self._rate, caller(scope))(scope, receive, send)
        elif scope["path"].endswith(_STREAM):
            await self._app(scope, receive, send)
        elif self._at_once >= self._most_at_once:
            await self._too_many()(scope, receive, send)
        else:
            self._at_once += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._at_once -= 1

    def _too_often(self, rate: RateLimitItemPerMinute, who: str) -> ASGIApp:
        reset_s = self._limiter.get_window_stats(rate, who).reset_time - time.time()
        wait_s = max(1, math.ceil(reset_s))
        return problem_reply(
            HTTPStatus.TOO_MANY_REQUESTS,
            f"more than {rate.amount:,} requests a minute; try again in {wait_s} s",
            {"Retry-After": str(wait_s)},
            limit=rate.amount,
        )

    def _too_many(self) -> ASGIApp:
        return problem_reply(
            HTTPStatus.SERVICE_UNAVAILABLE,
            f"{self._most_at_once:,} requests are worked at, the most at once; try again in a moment",
            {"Retry-After": "1"},
            limit=self._most_at_once,
        )


def caller(scope: Scope) -> str:
    """Return what requests of one caller have in common."""
    host = (scope.get("client") or ("unknown",))[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return str(host)
    return str(address) if address.version == 4 else str(ipaddress.ip_network((address, 64), strict=False))
