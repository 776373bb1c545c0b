"""The pictures over HTTP: the views' numbers, at once for short traces, as jobs for long ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from accelera._plotting import format_size
from accelera.service import ServiceLimits, ServiceSettings, create_app
from accelera.service.schemas import Workload
from accelera.service.trace_store import TraceCache
from accelera.simulator import generate_synthetic_trace
from accelera.trace import Trace, write_trace
from accelera.views import MeasuredTrace, WhatIf, fit_view
from accelera.views._internal import curves_view, least_per_unit, presets, timeline_view, ways_view
from tests.service.asking import TestClient, answered, reply_to

SMALL: dict[str, Any] = {"num_layers": 3, "batch_size": 4, "mode": "training", "hidden_size": 128}
SIZE = 200_000_000
BODY = {"source": SMALL, "budget": str(SIZE)}
PATHS = ("/v1/fit", "/v1/fit/ways", "/v1/fit/least", "/v1/curves", "/v1/timeline")
KINDS = {"/v1/fit": "fit", "/v1/fit/ways": "ways", "/v1/curves": "curves", "/v1/timeline": "timeline"}


def body_for(path: str, **changes: Any) -> dict[str, Any]:
    body = {**BODY, **changes}
    return {name: value for name, value in body.items() if path != "/v1/curves" or name != "budget"}


@pytest.fixture(scope="module")
def trace() -> Trace:
    return Workload(**SMALL).trace()


def test_fit_answers_what_the_view_says(client: TestClient, trace: Trace) -> None:
    assert answered(client, "/v1/fit", BODY) == fit_view(trace, SIZE).to_dict()
    changes = {"policies": ["lru", "planner"], "hierarchy": "laptop", "link_bytes_per_s": 1e9, "lookahead": 2}
    what_if = WhatIf("laptop", 1e9, 2)
    expected = fit_view(trace, SIZE, what_if, ["lru", "planner"]).to_dict()
    assert answered(client, "/v1/fit", {**BODY, **changes}) == expected


def test_a_budget_may_be_a_share_of_the_peak(client: TestClient, trace: Trace) -> None:
    verdict = answered(client, "/v1/fit", {**BODY, "budget": "50%"})["verdict"]
    assert verdict["budget_bytes"] == verdict["needs_bytes"] // 2
    assert answered(client, "/v1/fit", {**BODY, "budget": "100%"})["verdict"]["fits"]


def test_ways_least_curves_and_timeline_answer_what_the_views_say(client: TestClient, trace: Trace) -> None:
    workload = Workload(**SMALL).model_dump()
    assert answered(client, "/v1/fit/ways", BODY) == ways_view(trace, SIZE, workload).to_dict()
    least = answered(client, "/v1/fit/least", BODY)
    assert least["least_bytes"] == least_per_unit(trace, SIZE)
    assert "No schedule moves less than" in least["sentence"]
    curves = answered(client, "/v1/curves", {"source": SMALL, "points": 5})
    assert curves == curves_view(trace, points=5).to_dict()
    timeline = answered(client, "/v1/timeline", {**BODY, "begin_s": 0.001, "end_s": 0.002})
    expected = timeline_view(trace, SIZE, WhatIf(lookahead=1), window=(0.001, 0.002))
    assert timeline == expected.to_dict()


def test_the_bound_of_curves_comes_from_a_job(client: TestClient, trace: Trace) -> None:
    reply = reply_to(client, "/v1/curves", {"source": SMALL, "points": 3, "bound": True})
    assert "/v1/jobs/" in reply.headers["location"]
    assert reply.status_code == 200
    assert reply.json() == curves_view(trace, points=3, bound=True).to_dict()


def test_the_least_below_the_floor_is_null(client: TestClient) -> None:
    least = answered(client, "/v1/fit/least", {**BODY, "budget": "1kB"})
    assert least["least_bytes"] is None
    assert "No schedule runs" in least["sentence"]


def test_models_are_the_presets(client: TestClient) -> None:
    assert client.get("/v1/models").json() == presets()


def test_a_stored_trace_is_answered_until_it_is_deleted(client: TestClient, tmp_path: Path) -> None:
    trace = generate_synthetic_trace(num_layers=2, batch_size=2)
    write_trace(trace, tmp_path / "trace.parquet")
    content = (tmp_path / "trace.parquet").read_bytes()
    digest = client.post("/v1/traces?name=a.parquet", content=content).json()["digest"]
    body = {"source": digest, "budget": "50MB"}
    for _ in range(2):
        assert answered(client, "/v1/fit", body) == fit_view(trace, 50 * 10**6).to_dict()
    ways = answered(client, "/v1/fit/ways", body)
    assert {way["kind"] for way in ways["ways"]} <= {"card"}
    assert client.delete(f"/v1/traces/{digest}").status_code == 204
    for path in PATHS:
        reply = client.post(path, json=body_for(path, source=digest))
        assert reply.status_code == 404, path
        assert digest in reply.json()["detail"]


def test_a_queued_job_says_how_many_are_before_it() -> None:
    limits = ServiceLimits(quick_accesses=100)
    with TestClient(create_app(ServiceSettings(limits=limits, workers=0))) as idle:
        replies = [idle.post("/v1/fit", json={**BODY, "budget": budget}) for budget in ("1GB", "2GB", "3GB")]
        told = [reply.json()["doing"] for reply in replies]
        assert told == ["", "waits for 1 job before it", "waits for 2 jobs before it"]
        assert idle.get(replies[2].headers["location"]).json()["doing"] == told[2]


def test_long_traces_are_jobs_with_the_same_result() -> None:
    limits = ServiceLimits(quick_accesses=100)
    with TestClient(create_app(ServiceSettings(limits=limits, workers=0))) as idle:
        for path, kind in KINDS.items():
            asked = idle.post(path, json=body_for(path))
            assert asked.status_code == 202, path
            assert asked.json()["kind"] == kind
    with TestClient(create_app(ServiceSettings(limits=limits))) as small, TestClient(create_app()) as usual:
        for path in KINDS:
            found = reply_to(small, path, body_for(path))
            assert found.status_code == 200, found.text
            assert found.json() == answered(usual, path, body_for(path))


WRONG: list[tuple[dict[str, Any], int]] = [
    ({"budget": "-1"}, 422),
    ({"budget": 12}, 422),
    ({"budget": "999999999999PiB"}, 422),
    ({"budget": None}, 422),
    ({"hierarchy": "copilot"}, 422),
    ({"link_bytes_per_s": 0}, 422),
    ({"link_bytes_per_s": True}, 422),
    ({"lookahead": 65}, 422),
    ({"unknown": 1}, 422),
    ({"source": "0" * 64}, 404),
    ({"source": "../x"}, 422),
    ({"source": {**SMALL, "num_layers": 512, "steps": 4096}}, 413),
]


@pytest.mark.parametrize(
    ("path", "changes", "status"),
    [(path, *case) for path in PATHS for case in WRONG if path != "/v1/curves" or "budget" not in case[0]],
)
def test_what_cannot_be_meant_is_a_problem(
    client: TestClient, path: str, changes: dict[str, Any], status: int
) -> None:
    reply = reply_to(client, path, body_for(path, **changes))  # a busy machine answers later
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.json()["detail"]


@pytest.mark.parametrize(
    ("path", "changes"),
    [
        ("/v1/fit", {"policies": []}),
        ("/v1/fit", {"policies": ["scored"]}),
        ("/v1/fit", {"policies": ["LRU"] * 33}),
        ("/v1/curves", {"points": 1}),
        ("/v1/curves", {"points": 201}),
        ("/v1/curves", {"bound": 1}),
        ("/v1/timeline", {"policy": "learned"}),
        ("/v1/timeline", {"begin_s": 2, "end_s": 1}),
        ("/v1/timeline", {"begin_s": -1}),
    ],
)
def test_options_have_bounds(client: TestClient, path: str, changes: dict[str, Any]) -> None:
    reply = client.post(path, json=body_for(path, **changes))
    assert reply.status_code == 422, reply.text
    assert reply.headers["content-type"] == "application/problem+json"


def test_any_budget_is_answered(client: TestClient) -> None:
    for budget in ("0", "0.5", "1", "1kB", "0.1%", "100%", "4PiB"):
        for path in PATHS:
            reply = client.post(path, json=body_for(path, budget=budget))
            assert reply.status_code in (200, 422), (path, budget, reply.text)
            assert reply.status_code == 200 or reply.json()["detail"]


def test_held_traces_are_bounded() -> None:
    held = TraceCache(most=3, most_accesses=100)
    traces = {
        key: Trace.from_arrays(range(size), 1)
        for key, size in zip("abcde", (10, 20, 30, 61, 500), strict=True)
    }
    for key in "abc":
        held.put(key, traces[key])
    assert held.get("a") is not None
    held.put("d", traces["d"])
    assert [key for key in "abcd" if held.get(key)] == ["a", "d"]
    held.put("e", traces["e"])
    assert [key for key in "abcde" if held.get(key)] == ["e"]
    held.drop("e")
    held.drop("e")
    assert held.get("e") is None


@pytest.mark.parametrize(
    ("path", "question"),
    [
        ("/v1/timeline", {"budget": "1"}),
        ("/v1/advise", {"capacity": "1kB", "bound": False}),
    ],
)
def test_a_budget_below_the_floor_is_refused_with_the_floor(
    path: str, question: dict[str, Any], client: TestClient, trace: Trace
) -> None:
    reply = reply_to(client, path, {"source": SMALL, **question})
    assert reply.status_code == 422, reply.text
    detail = reply.json()["detail"]
    assert "no schedule runs in" in detail
    assert f"take at least {MeasuredTrace(trace).floor_bytes:,} bytes" in detail
    assert answered(client, "/v1/fit", {"source": SMALL, "budget": "1"})["verdict"]["runs"] is False


def test_budget_of_nothing_is_refused(client: TestClient) -> None:
    reply = reply_to(client, "/v1/timeline", {"source": SMALL, "budget": "0"})
    assert reply.status_code == 422, reply.text
    assert "leaves no memory" in reply.json()["detail"]


def test_a_long_timeline_below_the_floor_is_refused_alike() -> None:
    settings = ServiceSettings(limits=ServiceLimits(quick_accesses=100))
    with TestClient(create_app(settings)) as client:
        reply = reply_to(client, "/v1/timeline", {"source": SMALL, "budget": "1"})
    assert reply.status_code == 422, reply.text
    assert "no schedule runs in 1 B: one operation alone" in reply.json()["detail"]


@pytest.mark.parametrize("none", ["0", "0 GB", "0.000001kB", "0.000001%"])
def test_a_sweep_at_no_bytes_is_refused(none: str, client: TestClient) -> None:
    tiny = {"model_type": "MLP", "num_layers": 1, "batch_size": 1, "hidden_size": 8}
    reply = reply_to(client, "/v1/sweeps", {"source": tiny, "policies": ["lru"], "capacities": ["1GB", none]})
    assert reply.status_code == 422, reply.text
    assert "1 byte or more" in reply.json()["detail"]


def test_a_sweep_says_where_schedules_begin_to_run(client: TestClient, trace: Trace) -> None:
    floor = MeasuredTrace(trace).floor_bytes
    body = {"source": SMALL, "policies": ["lru"], "capacities": ["1kB", "1GB"], "bound": False}
    reply = reply_to(client, "/v1/sweeps", body)
    assert reply.status_code == 200, reply.text
    assert reply.json()["floor_bytes"] == floor
    runs = client.get("/v1/runs?kind=sweep").json()["runs"]
    assert runs[0]["headline"] == f"LRU moves least by and large; no schedule runs below {format_size(floor)}"


@pytest.mark.parametrize(
    ("path", "changes", "told"),
    [
        ("/v1/fit", {"budget": "-1"}, "budget: '-1' is no size; give bytes such as '8GiB'"),
        ("/v1/fit", {"budget": 5}, "budget: Input should be a valid string; found 5"),
        ("/v1/timeline", {"policy": "lro"}, "policy: no policy is called 'lro'; did you mean 'lru'"),
        (
            "/v1/plan",
            None,
            "its kind is absent or unknown; give kind 'matmul' to plan a product, 'offload' to plan a model",
        ),
        ("/v1/plan", {"kind": "x"}, "its kind is absent or unknown; give kind 'matmul'"),
        ("/v1/plan", {"kind": "matmul", "a": [1], "b": [1], "budget": "50%"}, "'50%' is no size; give bytes"),
        ("/simulate?policy=nonesuch", {}, "no policy is called 'nonesuch'; known: "),
    ],
)
def test_refusals_say_what_was_found_and_what_to_do(
    path: str, changes: dict[str, Any] | None, told: str, client: TestClient
) -> None:
    body = {**BODY, **changes} if path in PATHS and changes is not None else changes or {}
    reply = client.post(path, json=body)
    assert reply.status_code == 422, reply.text
    detail = reply.json()["detail"]
    assert told in detail
    assert all(detail.count(f" {name},") <= 1 for name in ("lru", "LRU", "belady"))
    assert "\\d" not in detail
    assert " tag " not in detail


def test_policies_are_taken_in_any_case(client: TestClient) -> None:
    figures = [
        client.post(f"/simulate?policy={name}&trace=none", json=SMALL).json()["figures"]
        for name in ("ml", "ML", "Ml")
    ]
    assert figures[0] == figures[1] == figures[2]
    assert answered(client, "/v1/timeline", {**BODY, "policy": "LRU"})["policy"] == "lru"
