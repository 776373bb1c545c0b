"""Limits on traffic: requests per minute of one caller, and concurrent requests of all callers."""

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
"""End of the paths of event streams, which last long and do not count as concurrent requests."""


class TrafficLimiter:
    """Middleware that refuses callers above their rate (429), and all callers under overload (503).

    A caller is an IP address; of IPv6 the first 64 bits, which belong to one subscriber. ``/health``, which
    load balancers request, always passes. Each replica counts for itself.
    """

    def __init__(self, app: ASGIApp, settings: ServiceSettings) -> None:
        self._app = app
        self._most_active = settings.limits.concurrent_requests
        self._active = 0
        rate = settings.requests_per_minute
        self._rate = RateLimitItemPerMinute(rate) if rate else None
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
        elif self._rate is not None and not self._limiter.hit(self._rate, caller_key(scope)):
            await self._rate_reply(self._rate, caller_key(scope))(scope, receive, send)
        elif scope["path"].endswith(_STREAM):
            await self._app(scope, receive, send)
        elif self._active >= self._most_active:
            await self._overload_reply()(scope, receive, send)
        else:
            self._active += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._active -= 1

    def _rate_reply(self, rate: RateLimitItemPerMinute, key: str) -> ASGIApp:
        reset_s = self._limiter.get_window_stats(rate, key).reset_time - time.time()
        wait_s = max(1, math.ceil(reset_s))
        return problem_reply(
            HTTPStatus.TOO_MANY_REQUESTS,
            f"more than {rate.amount:,} requests a minute; try again in {wait_s} s",
            {"Retry-After": str(wait_s)},
            limit=rate.amount,
        )

    def _overload_reply(self) -> ASGIApp:
        return problem_reply(
            HTTPStatus.SERVICE_UNAVAILABLE,
            f"{self._most_active:,} requests are worked at, the most at once; try again in a moment",
            {"Retry-After": "1"},
            limit=self._most_active,
        )


def caller_key(scope: Scope) -> str:
    """Return the key by which a caller's requests are counted: its IPv4 address or IPv6 network."""
    host = (scope.get("client") or ("unknown",))[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return str(host)
    return str(address) if address.version == 4 else str(ipaddress.ip_network((address, 64), strict=False))
