"""Links of the OpenAPI description: what can be done next with what a reply names."""

from __future__ import annotations

from typing import Any, NamedTuple


class _Next(NamedTuple):
    """An operation that takes what a reply names."""

    method: str
    path: str
    parameter: str | None
    """Of its path; None where the digest goes into its body as ``source``."""


_OF_TRACES = {
    "describe": _Next("get", "/v1/traces/{digest}", "digest"),
    "download": _Next("get", "/v1/traces/{digest}/content", "digest"),
    "delete": _Next("delete", "/v1/traces/{digest}", "digest"),
    "sweep": _Next("post", "/v1/sweeps", None),
    "advise": _Next("post", "/v1/advise", None),
    "bound": _Next("post", "/v1/bounds", None),
    "fit": _Next("post", "/v1/fit", None),
    "curves": _Next("post", "/v1/curves", None),
    "timeline": _Next("post", "/v1/timeline", None),
}
_OF_JOBS = {
    "describe": _Next("get", "/v1/jobs/{id}", "id"),
    "result": _Next("get", "/v1/jobs/{id}/result", "id"),
    "watch": _Next("get", "/v1/jobs/{id}/events", "id"),
    "cancel": _Next("post", "/v1/jobs/{id}/cancel", "id"),
    "rerun": _Next("post", "/v1/jobs/{id}/rerun", "id"),
    "delete": _Next("delete", "/v1/jobs/{id}", "id"),
}
_OF_RUNS = {
    "describe": _Next("get", "/v1/runs/{id}", "id"),
    "delete": _Next("delete", "/v1/runs/{id}", "id"),
}


def add_links(schema: dict[str, Any]) -> None:
    """Link replies of ``schema`` that name a trace, a job or a run to the operations that take it."""
    for path, operations in schema["paths"].items():
        for status, reply in operations.get("post", {}).get("responses", {}).items():
            if path == "/v1/traces" and status in ("200", "201"):
                _link(schema, reply, _OF_TRACES)
            elif path == "/v1/runs" and status == "201":
                _link(schema, reply, _OF_RUNS)
            elif status == "202":
                _link(schema, reply, _OF_JOBS)


def _link(schema: dict[str, Any], reply: dict[str, Any], following: dict[str, _Next]) -> None:
    links = reply.setdefault("links", {})
    for name, each in following.items():
        operation = schema["paths"].get(each.path, {}).get(each.method)
        if operation is None:
            continue
        taken: dict[str, Any] = {"requestBody": {"source": "$response.body#/digest"}}
        if each.parameter is not None:
            taken = {"parameters": {each.parameter: f"$response.body#/{each.parameter}"}}
        links[name] = {"operationId": operation["operationId"], **taken}
