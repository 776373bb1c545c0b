"""Errors as problem details (RFC 9457): one JSON shape for the replies to all requests that fail."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from accelera.errors import (
    AcceleraError,
    BackendMissingError,
    BudgetExceededError,
    TraceFormatError,
    UnknownNameError,
)

LOG = logging.getLogger("accelera.service")
MEDIA_TYPE = "application/problem+json"
_STATUS: tuple[tuple[type[Exception], HTTPStatus], ...] = (
    (UnknownNameError, HTTPStatus.UNPROCESSABLE_ENTITY),
    (TraceFormatError, HTTPStatus.UNPROCESSABLE_ENTITY),
    (BudgetExceededError, HTTPStatus.UNPROCESSABLE_ENTITY),
    (BackendMissingError, HTTPStatus.NOT_IMPLEMENTED),
    (AcceleraError, HTTPStatus.UNPROCESSABLE_ENTITY),
    (ValueError, HTTPStatus.UNPROCESSABLE_ENTITY),
)
"""HTTP status of each class of errors; the first match counts."""
_SHOWN_ERRORS = 20
_MOST_VALUE_CHARACTERS = 40
"""Most characters of a value that an error repeats."""
_SELF_EXPLAINING = frozenset({"value_error", "missing", "extra_forbidden", "json_invalid"})
"""Types of validation errors whose message already says which value was found, or that none was."""
_METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
_UNREADABLE = "There was an error parsing the body"
"""FastAPI's message for a body that cannot be decoded (400); to one that is no JSON it replies 422."""


class Problem(Exception):
    """A refusal: an HTTP status, a sentence, and members that programs read."""

    def __init__(self, status: HTTPStatus, detail: str, **members: Any) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.members = members


def too_large(what: str, found: int, limit: int, remedy: str) -> Problem:
    """Return a Problem (413) for ``found`` units of ``what``, more than ``limit``."""
    return Problem(
        HTTPStatus.CONTENT_TOO_LARGE if hasattr(HTTPStatus, "CONTENT_TOO_LARGE") else HTTPStatus(413),
        f"{what}: {found:,} of at most {limit:,}; {remedy}",
        limit=limit,
        found=found,
    )


def problem_reply(
    status: HTTPStatus, detail: str, headers: Mapping[str, str] | None = None, **members: Any
) -> Response:
    """Return a reply whose body is a problem."""
    return Response(problem_content(status, detail, **members), int(status), headers, MEDIA_TYPE)


def problem_content(status: HTTPStatus, detail: str, **members: Any) -> bytes:
    """Return a problem as JSON."""
    title = status.phrase
    return orjson.dumps(
        {"type": "about:blank", "title": title, "status": int(status), "detail": detail, **members}
    )


def add_handlers(app: FastAPI) -> None:
    """Register handlers that turn every error of ``app`` into a problem reply."""
    app.add_exception_handler(Problem, _on_problem)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    for kind, _ in _STATUS:
        app.add_exception_handler(kind, _on_refusal)
    app.add_exception_handler(DBAPIError, _on_database_error)
    app.add_exception_handler(OSError, _on_os_error)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(Exception, _on_unexpected_error)


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the descriptions of problems with these statuses, as OpenAPI shows them."""
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": {MEDIA_TYPE: {"schema": schema}}}
        for status in statuses
    }


def document_traffic(schema: dict[str, Any]) -> None:
    """Add the replies 429 and 503 of the middleware to every operation of ``schema`` except health."""
    refusals = {str(status): each for status, each in documented(429, 503).items()}
    for path, operations in schema["paths"].items():
        if not path.endswith("/health"):
            for operation in operations.values():
                operation["responses"] = {**refusals, **operation["responses"]}


SCHEMA: dict[str, Any] = {
    "title": "Problem",
    "description": "What went wrong (RFC 9457).",
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string", "description": "The status in words."},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What was asked, what was found, what to do."},
        "errors": {
            "type": "array",
            "description": "Per wrong field, where it is and what is wrong.",
            "items": {
                "type": "object",
                "properties": {
                    "field": {"type": "string"},
                    "type": {"type": "string", "description": "The kind of fault, such as missing."},
                    "message": {"type": "string"},
                },
            },
        },
    },
}


async def _on_problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return problem_reply(error.status, error.detail, **error.members)


async def _on_validation_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = error.errors()
    wrong = [
        {
            "field": ".".join(str(part) for part in one["loc"]),
            "type": str(one["type"]),
            "message": _field_message(one),
        }
        for one in errors[:_SHOWN_ERRORS]
    ]
    first = f"{wrong[0]['field']}: {wrong[0]['message']}" if wrong else "the request cannot be read"
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return problem_reply(HTTPStatus.UNPROCESSABLE_ENTITY, first + more, errors=wrong)


def _field_message(one: Mapping[str, Any]) -> str:
    """Return the message of a field's error, with the value that was found if it is short."""
    message, value = str(one["msg"]).removeprefix("Value error, "), one.get("input")
    if (
        one["type"] in _SELF_EXPLAINING
        or not isinstance(value, str | int | float | None)
        or len(str(value)) > _MOST_VALUE_CHARACTERS
    ):
        return message
    return f"{message}; found {value!r}"


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    detail = error.detail if error.detail and error.detail != status.phrase else status.description
    headers = error.headers
    if status == HTTPStatus.BAD_REQUEST and error.detail == _UNREADABLE:
        status, detail = HTTPStatus.UNPROCESSABLE_ENTITY, "the body is no JSON text in UTF-8"
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        methods = ", ".join(sorted(_allowed_methods(request)))
        detail, headers = f"{request.method} is not answered here; {methods} is", {"Allow": methods}
    return problem_reply(status, detail or f"the service answers with {status.phrase}", headers)


def _allowed_methods(request: Request) -> set[str]:
    """Return the methods that are allowed at a path; the router's own reply names only the first route's."""
    scopes = [{**request.scope, "method": method} for method in _METHODS]
    routes = request.app.router.routes
    return {each["method"] for each in scopes if any(one.matches(each)[0] is Match.FULL for one in routes)}


async def _on_refusal(_: Request, error: Exception) -> Response:
    status = next(status for kind, status in _STATUS if isinstance(error, kind))
    return problem_reply(status, str(error))


async def _on_database_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, DBAPIError)
    if not isinstance(error, (OperationalError, InterfaceError)):
        return await _on_unexpected_error(request, error)
    LOG.error("%s %s: the database refused", request.method, request.url.path, exc_info=error)
    full = "full" in str(error.orig).lower() or "no space" in str(error.orig).lower()
    what = (
        "its disk is full; delete traces or jobs" if full else "it cannot be reached; try again in a moment"
    )
    return problem_reply(
        HTTPStatus.SERVICE_UNAVAILABLE, f"the database does not answer: {what}", {"Retry-After": "5"}
    )


async def _on_os_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, OSError)
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE):
        return await _on_unexpected_error(request, error)
    LOG.error("%s %s: %s", request.method, request.url.path, error)
    return problem_reply(
        HTTPStatus.SERVICE_UNAVAILABLE,
        f"the service's machine has no room for it ({os.strerror(error.errno)}); try again later",
        {"Retry-After": "30"},
    )


async def _on_disconnect(_: Request, __: Exception) -> Response:
    """Return a reply that nobody receives: the caller disconnected before the body was complete."""
    return problem_reply(HTTPStatus.BAD_REQUEST, "the body ended before its length")


async def _on_unexpected_error(request: Request, error: Exception) -> Response:
    LOG.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return problem_reply(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "the service failed, and its log says where; please report it with the request",
    )
