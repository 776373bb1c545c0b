"""HTTP transport of the service's client: requests, errors from problem details, and event streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, NoReturn

import httpx

from accelera._json_values import parse_json, shown
from accelera.errors import ArgumentError, ServiceError, ServiceUnreachableError

_REMEDIES = {
    HTTPStatus.UNAUTHORIZED: "give the token that the service was started with",
    HTTPStatus.TOO_MANY_REQUESTS: "wait a moment, then ask again",
    HTTPStatus.SERVICE_UNAVAILABLE: "wait a moment, then ask again",
}


class Transport:
    """One service over HTTP.

    Parameters
    ----------
    url
        Such as ``http://127.0.0.1:8000``.
    token
        Sent as ``Authorization: Bearer …``; empty for none.
    timeout
        Maximum duration of one request, in seconds.
    inner
        A transport of httpx instead of the network, for tests.
    """

    def __init__(
        self, url: str, token: str = "", timeout: float = 60.0, inner: httpx.BaseTransport | None = None
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ArgumentError(
                f"[client] {url!r} is no address of a service; write for example http://127.0.0.1:8000"
            )
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(
            base_url=self.url, headers=headers, timeout=timeout, transport=inner, trust_env=False
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def send(self, method: str, path: str, **content: Any) -> httpx.Response:
        """Return the reply to one request; raises ServiceError for every status from 400."""
        with self._connection_errors():
            reply = self._http.request(method, path, **content)
        if reply.is_error:
            _raise_problem(reply)
        return reply

    def get(self, path: str, **parameters: Any) -> Any:
        """Return the JSON at ``path``."""
        return content_of(self.send("GET", path, params=_without_none(parameters)))

    def post(self, path: str, body: Mapping[str, Any] | None = None, **parameters: Any) -> httpx.Response:
        """Send JSON and return the reply."""
        return self.send(
            "POST", path, json=None if body is None else dict(body), params=_without_none(parameters)
        )

    def events(self, path: str, seen: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield the JSON of each server-sent event, from the one after number ``seen``."""
        headers = {"Accept": "text/event-stream"} | ({} if seen is None else {"Last-Event-ID": str(seen)})
        timeout = httpx.Timeout(self._http.timeout.connect, read=None)
        with (
            self._connection_errors(),
            self._http.stream("GET", path, headers=headers, timeout=timeout) as reply,
        ):
            if reply.is_error:
                reply.read()
                _raise_problem(reply)
            yield from _event_data(reply.iter_lines())

    @contextmanager
    def _connection_errors(self) -> Iterator[None]:
        try:
            yield
        except httpx.TimeoutException as error:
            raise ServiceUnreachableError(
                f"[client] the service at {self.url} did not answer in time; it may be busy: ask again"
            ) from error
        except httpx.TransportError as error:
            raise ServiceUnreachableError(
                f"[client] no service answers at {self.url} ({error}); `accelera serve` starts one"
            ) from error


def content_of(reply: httpx.Response) -> Any:
    """Return the JSON of a reply; raises ServiceError for one that is not JSON, such as a proxy's page."""
    return _parsed(f"the reply to {reply.request.method} {reply.request.url.path}", reply.content)


def _parsed(source: str, text: str | bytes) -> Any:
    try:
        return parse_json(text)
    except ArgumentError as error:
        raise ServiceError(
            f"[client] {source} is not JSON ({error}); check that the address is that of a Copilot service"
        ) from error


def member_of(content: Any, name: str) -> Any:
    """Return a member of a JSON object; raises ServiceError for other content, or without the member."""
    if not isinstance(content, dict) or name not in content:
        raise ServiceError(
            f"[client] the reply is {shown(content, repr)}, expected an object with {name!r}; the service "
            "may be of another version"
        )
    return content[name]


def _without_none(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if value is not None}


def _event_data(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Yield the data of events; comments, which keep a connection open, are passed over."""
    data: list[str] = []
    for line in lines:
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            yield _parsed("an event of a job", "\n".join(data))
            data = []


def _raise_problem(reply: httpx.Response) -> NoReturn:
    try:
        problem = parse_json(reply.content)
    except ArgumentError:  # no reply of ours: a proxy's page
        problem = {}
    if not isinstance(problem, dict):
        problem = {}
    detail = str(problem.get("detail") or reply.reason_phrase or "no reason given")
    remedy = _REMEDIES.get(HTTPStatus(reply.status_code)) if reply.status_code in list(HTTPStatus) else None
    more = f"; {remedy}" if remedy and remedy not in detail else ""
    asked = f"{reply.request.method} {reply.request.url.path}"
    raise ServiceError(
        f"[client] {asked} was refused ({reply.status_code}): {detail}{more}",
        status=reply.status_code,
        problem=problem,
    )
