"""RequestGate before the application: the token of a caller, and the size of a body."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from accelera.service.problems import Problem, problem_reply, too_large
from accelera.service.settings import ServiceSettings, is_loopback, is_token

OPEN_PATHS = frozenset({"/health", "/v1/health"})
"""What a load balancer asks without a token."""
UPLOAD_PATHS = frozenset({"/v1/traces", "/v1/traces/"})


class RequestGate:
    """Refuses callers without the token and bodies over the limit, before anything of them is parsed."""

    def __init__(self, app: ASGIApp, settings: ServiceSettings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or refuse one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        refused = self._with_token(scope, headers) if self._settings.token else self._without(scope, headers)
        if refused is not None:
            await refused(scope, receive, send)
            return
        limits = self._settings.limits
        limit = limits.upload_bytes if scope["path"] in UPLOAD_PATHS else limits.body_bytes
        told = headers.get(b"content-length", b"0")
        if told.isdigit() and int(told) > limit:
            await _refusal(int(told), limit)(scope, receive, send)
            return
        await self._limited(scope, receive, send, limit)

    def _with_token(self, scope: Scope, headers: dict[bytes, bytes]) -> ASGIApp | None:
        """Return what refuses a caller who does not know the token, None for one who does."""
        if scope["path"] in OPEN_PATHS or self._may_pass(headers):
            return None
        return problem_reply(
            HTTPStatus.UNAUTHORIZED,
            "send the service's token as 'Authorization: Bearer TOKEN'",
            {"WWW-Authenticate": "Bearer"},
        )

    def _without(self, scope: Scope, headers: dict[bytes, bytes]) -> ASGIApp | None:
        """Return what refuses a web page from elsewhere, None for callers of this machine."""
        strange = self._strange_host(scope)
        if strange is not None:
            detail = f"{strange[:100]!r} is no name of this service; ask it at 127.0.0.1 or localhost"
            return problem_reply(HTTPStatus.MISDIRECTED_REQUEST, detail)
        if _is_elsewhere(headers):
            detail = "a web page from elsewhere may not ask; open the service's own address"
            return problem_reply(HTTPStatus.FORBIDDEN, detail)
        return None

    def _strange_host(self, scope: Scope) -> str | None:
        """Return a Host that is not this machine's, None for none.

        A web page may have its own name resolve to this machine (DNS rebinding): then its Origin is its Host,
        and only the name tells that it is from elsewhere.
        """
        for name, value in scope["headers"]:
            if name == b"host":
                host = _host_of(value)
                if not is_loopback(host) and host not in self._settings.own_hosts:
                    return str(value.decode("latin-1"))
        return None

    def _may_pass(self, headers: dict[bytes, bytes]) -> bool:
        scheme, _, given = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        return scheme.lower() == "bearer" and is_token(given.strip(), self._settings.token)

    async def _limited(self, scope: Scope, receive: Receive, send: Send, limit: int) -> None:
        """Count a body without a length; the answer to one over the limit is always 413."""
        received = 0
        answered = False

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                raise _BodyTooLarge
            return message

        async def checked(message: Message) -> None:
            nonlocal answered
            if received <= limit or answered:
                answered = True
                await send(message)

        with suppress(_BodyTooLarge):
            await self._app(scope, counted, checked)
        if received > limit and not answered:
            await _refusal(received, limit)(scope, receive, send)


def _is_elsewhere(headers: dict[bytes, bytes]) -> bool:
    """Return whether a browser says that the page which asks is not of this service: CORS is closed.

    With a token there is no need: a browser does not know it.
    """
    origin = headers.get(b"origin")
    return origin is not None and origin.rpartition(b"//")[2] != headers.get(b"host")


@lru_cache(maxsize=64)
def _host_of(given: bytes) -> str:
    """Return the name or address of a Host header in lower case, without its port; empty for nonsense."""
    try:
        return urlsplit(f"//{given.decode('latin-1')}").hostname or ""
    except ValueError:
        return ""


class _BodyTooLarge(Exception):
    """More of a body has come than is taken."""


def _refusal(found: int, limit: int) -> ASGIApp:
    refused: Problem = too_large("bytes of the body", found, limit, "send less at once")
    return problem_reply(refused.status, refused.detail, **refused.members)
