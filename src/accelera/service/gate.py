"""Middleware before the application: it checks the token of a caller and the size of a body."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from accelera.service.problems import Problem, problem_reply, too_large
from accelera.service.settings import ServiceSettings, is_loopback, is_token

OPEN_PATHS = frozenset({"/health", "/v1/health"})
"""Paths that need no token: load balancers request them."""
UPLOAD_PATHS = frozenset({"/v1/traces", "/v1/traces/"})


class RequestGate:
    """Middleware that refuses callers without the token and bodies over the limit, before they are parsed."""

    def __init__(self, app: ASGIApp, settings: ServiceSettings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        refusal = (
            self._token_refusal(scope, headers)
            if self._settings.token
            else self._origin_refusal(scope, headers)
        )
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        limits = self._settings.limits
        limit = limits.upload_bytes if scope["path"] in UPLOAD_PATHS else limits.body_bytes
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > limit:
            await _too_large_reply(int(declared), limit)(scope, receive, send)
            return
        await self._pass_limited(scope, receive, send, limit)

    def _token_refusal(self, scope: Scope, headers: dict[bytes, bytes]) -> ASGIApp | None:
        """Return the reply (401) to a request without the token, None for one that has it."""
        if scope["path"] in OPEN_PATHS or self._has_token(headers):
            return None
        return problem_reply(
            HTTPStatus.UNAUTHORIZED,
            "send the service's token as 'Authorization: Bearer TOKEN'",
            {"WWW-Authenticate": "Bearer"},
        )

    def _origin_refusal(self, scope: Scope, headers: dict[bytes, bytes]) -> ASGIApp | None:
        """Return the reply (403, 421) to a request by another site's web page, None for any other request."""
        foreign = self._foreign_host(scope)
        if foreign is not None:
            detail = f"{foreign[:100]!r} is no name of this service; ask it at 127.0.0.1 or localhost"
            return problem_reply(HTTPStatus.MISDIRECTED_REQUEST, detail)
        if _is_cross_origin(headers):
            detail = "a web page from elsewhere may not ask; open the service's own address"
            return problem_reply(HTTPStatus.FORBIDDEN, detail)
        return None

    def _foreign_host(self, scope: Scope) -> str | None:
        """Return the first Host header that names another machine, None when there is none.

        A web page may have its own name resolve to this machine (DNS rebinding): then its Origin is its Host,
        and only the name shows that it is another site.
        """
        for name, value in scope["headers"]:
            if name == b"host":
                host = _host_of(value)
                if not is_loopback(host) and host not in self._settings.own_hosts:
                    return str(value.decode("latin-1"))
        return None

    def _has_token(self, headers: dict[bytes, bytes]) -> bool:
        scheme, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        return scheme.lower() == "bearer" and is_token(token.strip(), self._settings.token)

    async def _pass_limited(self, scope: Scope, receive: Receive, send: Send, limit: int) -> None:
        """Pass a request on, counting its body's bytes; the reply to one over the limit is always 413."""
        received = 0
        answered = False

        async def receive_counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                raise _BodyTooLarge
            return message

        async def send_checked(message: Message) -> None:
            nonlocal answered
            if received <= limit or answered:
                answered = True
                await send(message)

        with suppress(_BodyTooLarge):
            await self._app(scope, receive_counted, send_checked)
        if received > limit and not answered:
            await _too_large_reply(received, limit)(scope, receive, send)


def _is_cross_origin(headers: dict[bytes, bytes]) -> bool:
    """Return whether the Origin header, which browsers send, names another site: CORS is not allowed.

    A service with a token does not need this check: a browser does not know the token.
    """
    origin = headers.get(b"origin")
    return origin is not None and origin.rpartition(b"//")[2] != headers.get(b"host")


@lru_cache(maxsize=64)
def _host_of(header: bytes) -> str:
    """Return the name or address of a Host header in lower case, without its port; empty for no URL."""
    try:
        return urlsplit(f"//{header.decode('latin-1')}").hostname or ""
    except ValueError:
        return ""


class _BodyTooLarge(Exception):
    """A body has more bytes than the limit."""


def _too_large_reply(found: int, limit: int) -> ASGIApp:
    problem: Problem = too_large("bytes of the body", found, limit, "send less at once")
    return problem_reply(problem.status, problem.detail, **problem.members)
