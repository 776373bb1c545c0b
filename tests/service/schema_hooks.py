"""Schemathesis's hooks: short waits for jobs, and a look at each refusal of a sound request."""

from __future__ import annotations

from typing import Any

import schemathesis

_MOST_S = 0.1
_TRACE = (
    b'[{"tensor_id": "a", "size_mb": 1}, {"tensor_id": "b", "size_mb": 2}, {"tensor_id": "a", "size_mb": 1}]'
)


@schemathesis.hook
def map_query(context: Any, query: Any) -> Any:
    """Wait for jobs no longer than it takes to see that they may end meanwhile."""
    wait = query.get("wait") if isinstance(query, dict) else None
    if isinstance(wait, (int, float)) and not isinstance(wait, bool) and _MOST_S < wait <= 30:
        query["wait"] = _MOST_S
    return query


@schemathesis.hook
def map_case(context: Any, case: Any) -> Any:
    """Let every second upload be a trace, which random bytes never are, so that links have where to lead."""
    is_upload = case.operation.path == "/v1/traces" and case.operation.method.upper() == "POST"
    if is_upload and isinstance(case.body, bytes) and len(case.body) % 2 == 0:
        case.body = _TRACE
        case.query = {"name": "trace.json"}
    return case


@schemathesis.check
def refusals_are_explained(ctx: Any, response: Any, case: Any) -> None:
    """Whatever is not answered is a problem that says why.

    A request that the schema allows is refused only by what no schema can say: a limit, which is named, a
    rule over several fields, or contents that are not what they are said to be.
    """
    if response.status_code < 400:
        return
    kind = response.headers.get("content-type", [""])[0]
    assert kind == "application/problem+json", f"{response.status_code} as {kind}"
    problem = response.json()
    assert problem["status"] == response.status_code
    assert len(problem["detail"]) > 5, "it says nothing"
    if response.status_code == 503:
        assert "limit" in problem, "a refusal for want of room names the limit"
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    if response.status_code == 413:
        assert problem["limit"] < problem["found"]
    if response.status_code == 422:
        # Of a field that may be one of several things, each is told what is wrong with it.
        kinds: dict[str, set[str]] = {}
        for wrong in problem.get("errors", []):
            kinds.setdefault(".".join(wrong["field"].split(".")[:2]), set()).add(wrong["type"])
        for field, found in kinds.items():
            assert "value_error" in found, f"the schema allows it: {field} {problem['errors']}"
