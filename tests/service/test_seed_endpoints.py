"""The seed's endpoints, asked over HTTP, answer what the library says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from accelera.service import ServiceLimits, ServiceSettings, create_app
from accelera.simulator import (
    gated,
    generate_synthetic_trace,
    predict_eviction_scores,
    simulate,
    validate_trace,
)
from tests.service.asking import TestClient

SEED: dict[str, Any] = {
    "model_type": "Transformer",
    "num_layers": 12,
    "batch_size": 32,
    "seq_length": 128,
    "reuse_probability": 0.3,
}
PATHS = ("/simulate", "/predict-schedule", "/validate-trace", "/generate-trace", "/predict-compile")


def answered(client: TestClient, path: str, body: Any) -> Any:
    reply = client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


@pytest.mark.parametrize("policy", ["LRU", "FIFO", "ML", "belady"])
def test_simulate_answers_as_the_seed_shows(client: TestClient, policy: str) -> None:
    found = answered(client, f"/simulate?policy={policy}", SEED)
    trace = generate_synthetic_trace(**SEED)
    table = predict_eviction_scores(trace, "heuristic")
    scores = table.eviction_score.dropna().to_numpy()
    report = simulate(trace, "copilot", policy, score=scores if policy == "ML" else None)
    for name, value in report.as_seed_metrics().items():
        assert found[name] == pytest.approx(value), name
    rows = table[trace.is_access]
    assert [row["tensor_id"] for row in found["trace"]] == rows.tensor_id.tolist()
    assert np.allclose([row["eviction_score"] for row in found["trace"]], scores)
    assert np.allclose([row["size_mb"] for row in found["trace"]], rows.size_mb)
    told = [-1 if row["reuse_distance"] is None else row["reuse_distance"] for row in found["trace"]]
    assert told == rows.reuse_distance.fillna(-1).tolist()
    assert "validation" not in found


def test_scores_come_with_what_the_gate_says_of_them(client: TestClient) -> None:
    trace = generate_synthetic_trace(**SEED)
    wanted = gated(trace, "heuristic", "copilot").to_dict()
    assert answered(client, "/predict-schedule", SEED)["gate"] == wanted
    assert answered(client, "/simulate?policy=ML", SEED)["gate"] == wanted
    assert "gate" not in answered(client, "/simulate?policy=lru", SEED)
    small = {**SEED, "hierarchy": "laptop", "capacity": "50%", "scorer": "replay"}
    assert answered(client, "/predict-schedule", small)["gate"]["scorer"] == "replay"


def test_validation_comes_when_asked(client: TestClient) -> None:
    found = answered(client, "/simulate", {**SEED, "validate": True})["validation"]
    assert found["reuse_entropy_bits"] == pytest.approx(
        validate_trace(generate_synthetic_trace(**SEED)).reuse_entropy_bits
    )
    assert answered(client, "/validate-trace", SEED) == found


@pytest.mark.parametrize("path", PATHS)
def test_all_answer_under_both_paths_and_alike(client: TestClient, path: str) -> None:
    assert answered(client, path, {"num_layers": 2}) == answered(client, f"/v1{path}", {"num_layers": 2})


def test_the_trace_can_be_had_as_columns_or_left_out(client: TestClient) -> None:
    rows = answered(client, "/v1/simulate", SEED)["trace"]
    columns = answered(client, "/v1/simulate?trace=columns", SEED)["trace"]
    assert [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)] == rows
    assert "trace" not in answered(client, "/v1/simulate?trace=none", SEED)


def test_a_source_text_is_predicted_and_never_run(client: TestClient) -> None:
    found = answered(client, "/predict-compile", {"source": "import os\nos.abort()\n"})
    assert isinstance(found, dict)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"num_layers": True}, 422),
        ({"num_layers": 0}, 422),
        ({"num_layers": "12"}, 422),
        ({"reuse_probability": 1.5}, 422),
        ({"unknown": 1}, 422),
        ({"model_type": "MLP", "mode": "decode"}, 422),
        ({"top_k": 9}, 422),
        ({"num_layers": 512, "mode": "training", "steps": 4096}, 413),
        ([], 422),
        (None, 422),
        ("text", 422),
    ],
)
@pytest.mark.parametrize("path", PATHS)
def test_what_cannot_be_meant_is_a_problem(client: TestClient, path: str, body: Any, status: int) -> None:
    reply = client.post(path, json=body)
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/problem+json"
    found = reply.json()
    assert found["status"] == status
    assert found["detail"]
    assert {"type", "title"} <= found.keys()


def test_limits_are_named(client: TestClient) -> None:
    limited = ServiceSettings(limits=ServiceLimits(body_bytes=100, accesses=1000))
    with TestClient(create_app(limited)) as small:
        told = small.post("/simulate", content=b"x" * 101)
        streamed = small.post("/simulate", content=iter([b"x" * 60, b"x" * 60]))
        long = small.post("/simulate", json={"num_layers": 500})
    for reply, limit in ((told, 100), (streamed, 100), (long, 1000)):
        assert reply.status_code == 413
        assert reply.json()["limit"] == limit


def test_callers_need_the_token() -> None:
    token = "0123456789abcdef"
    with TestClient(create_app(ServiceSettings(host="0.0.0.0", token=token))) as guarded:
        assert guarded.get("/health").status_code == 200
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {token}"}):
            refused = guarded.post("/simulate", json={}, headers=headers)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"] == "Bearer"
        assert guarded.post(f"/simulate?token={token}", json={}).status_code == 401
        passed = guarded.post("/simulate", json={}, headers={"Authorization": f"Bearer {token}"})
        assert passed.status_code == 200


def test_what_is_not_there_is_a_problem_too(client: TestClient) -> None:
    for reply, status in ((client.get("/nothing"), 404), (client.get("/simulate"), 405)):
        assert reply.status_code == status
        assert reply.headers["content-type"] == "application/problem+json"
