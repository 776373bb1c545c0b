"""Text that is no Unicode and numbers that are not finite are refused, and the service works on."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from accelera.service import create_app

LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 90,
}
WORKLOAD = {"source": {"model_type": "MLP", "num_layers": 2}}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/plan": {"kind": "offload", "batch": 2, "context": 16, "budget": "90MB", "config": LLAMA},
    "/v1/estimate": {"batch": 2, "budget": "1GB", "context": 16, "config": LLAMA},
    "/v1/fit": {"config": LLAMA, "batch": 1, "context": 16, "budget": "1GB", "dtypes": ["float32"]},
    "/v1/simulate": {**WORKLOAD, "capacity": "50%"},
    "/v1/sweep": {**WORKLOAD, "capacities": ["50%"], "policies": ["lru"]},
    "/v1/advise": {**WORKLOAD, "capacity": "50%"},
}
ODD = ['"\\ud800"', '"a\\udfffb"', "Infinity", "-Infinity", "NaN", "1e400", '{"\\udc00": 1}', '["\\ud9ab"]']


def odd_bodies(body: dict[str, Any], odd: str) -> list[str]:
    """Return JSON texts of a body with one value, one name, or one further field that is odd."""
    places = [(body,), *((body, name) for name in body)]
    texts = []
    for holder, *names in places:
        inner = holder[names[0]] if names else holder
        if not isinstance(inner, dict):
            continue
        for name in [*inner, "further"]:
            changed = json.loads(json.dumps(body))
            (changed[names[0]] if names else changed)[name] = "@odd@"
            texts.append(json.dumps(changed).replace('"@odd@"', odd))
    return texts


@pytest.fixture(scope="module")
def service() -> Any:
    with TestClient(create_app(), base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        yield client


@pytest.mark.parametrize("path", BODIES)
def test_odd_value_in_a_request_is_refused(service: TestClient, path: str) -> None:
    for odd, body in itertools.product(ODD, range(len(odd_bodies(BODIES[path], "0")))):
        text = odd_bodies(BODIES[path], odd)[body]
        reply = service.post(path, content=text.encode(), headers={"content-type": "application/json"})
        assert reply.status_code < 500, text
        assert service.get("/v1/jobs").status_code == 200, text


@pytest.mark.parametrize(
    "query", ["limit=1e400", "limit=NaN", "cursor=%ED%A0%80", "state=%ED%A0%80", "kind=%00"]
)
def test_odd_value_in_a_query_is_refused(service: TestClient, query: str) -> None:
    assert service.get(f"/v1/jobs?{query}").status_code < 500
    assert service.get(f"/v1/traces?{query}").status_code < 500
    assert service.get("/v1/jobs").status_code == 200
