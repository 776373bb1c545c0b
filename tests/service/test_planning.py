"""Estimates, plans and captures over HTTP answer what the library and the command line say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accelera import _extras as extras
from accelera.engine import MatrixEngine
from accelera.service import ServiceLimits, ServiceSettings, create_app, model_schemas
from accelera.service.configuration import checked_config
from accelera.service.model_work import Placeholder
from tests.service.asking import TestClient, answered, reply_to

TINY = {
    "model_type": "gpt2",
    "n_layer": 2,
    "n_embd": 64,
    "n_head": 2,
    "vocab_size": 100,
    "n_positions": 64,
    "auto_map": {"AutoModel": "evil.Model"},
    "architectures": ["GPT2LMHeadModel"],
}


def test_an_estimate_is_that_of_the_command_line(client: TestClient, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from accelera.cli import app

    body = {"config": TINY, "batch": 2, "context": 32, "dtypes": ["float32"], "budget": "300kB"}
    found = answered(client, "/v1/estimate", body)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({name: value for name, value in TINY.items() if name != "auto_map"}))
    options = ["--batch", "2", "--context", "32", "--dtype", "float32", "--budget", "300kB", "--json"]
    told = json.loads(CliRunner().invoke(app, ["estimate", str(path), *options]).stdout)
    assert {phase["name"] for phase in found["phases"]} == {"inference", "generation", "training"}
    assert found["headline"].startswith("GPT2LMHeadModel takes at most")
    for name, value in told.items():
        if name != "offload":  # whose seconds are measured
            assert found[name] == value, name
    assert [each.keys() for each in found["offload"]] == [each.keys() for each in told["offload"]]
    assert found["offload"]


def test_a_capture_is_stored_and_can_be_asked_about(client: TestClient, tmp_path: Path) -> None:
    from accelera.trace import read_trace
    from accelera.trace._internal import content_hash

    found = answered(client, "/v1/captures", {"config": TINY, "batch": 2, "context": 16, "training": True})
    assert found["model_type"] == "GPT2LMHeadModel"
    listed = client.get("/v1/traces").json()["traces"]
    assert [one["digest"] for one in listed] == [found["digest"]]
    content = client.get(f"/v1/traces/{found['digest']}/content").content
    (tmp_path / "trace.parquet").write_bytes(content)
    trace = read_trace(tmp_path / "trace.parquet")
    assert content_hash(trace) == found["digest"]
    assert len(trace.meta["iterations"]) == 2
    body = {"config": TINY, "batch": 2, "context": 16, "training": True}
    assert client.post("/v1/captures", json=body).json() == found, "answered at once"
    assert answered(client, "/v1/captures?fresh=true", body) == found
    assert client.get("/v1/traces").json()["total"] == 1
    advice = answered(client, "/v1/advise", {"source": found["digest"], "capacity": "80%"})
    assert advice["policy"]
    assert client.delete(f"/v1/traces/{found['digest']}").status_code == 204
    again = answered(client, "/v1/captures", body)
    assert again["digest"] == found["digest"]
    assert client.get(f"/v1/traces/{found['digest']}").status_code == 200, "it is there again"


def test_a_generation_is_captured(client: TestClient) -> None:
    body = {"config": TINY, "context": 16, "generate_tokens": 3, "dtype": "bfloat16"}
    found = answered(client, "/v1/captures", body)
    assert "generation" in found["name"]


@pytest.mark.parametrize("out", ["disk", "memory"])
def test_a_products_plan_is_that_of_real_files(client: TestClient, tmp_path: Path, out: str) -> None:
    shapes = {"a": [700, 900], "b": [900, 500]}
    budget = "32MiB" if out == "disk" else "33MiB"
    for name, shape in shapes.items():
        np.save(tmp_path / f"{name}.npy", np.zeros(shape, np.float32))
    engine = MatrixEngine("cpu", enable_progress=False)
    to = str(tmp_path / "C.npy") if out == "disk" else None
    files = [str(tmp_path / f"{name}.npy") for name in shapes]
    engine.plan(*files, out=to, budget=budget)  # the first one measures how fast this machine multiplies
    real = engine.plan(*files, out=to, budget=budget)
    paper: list[Any] = [Placeholder(name.upper(), shape, "float32") for name, shape in shapes.items()]
    assert engine.plan(paper[0], paper[1], out=to, budget=budget).to_dict() == real.to_dict()
    found = answered(client, "/v1/plan", {"kind": "matmul", **shapes, "budget": budget, "out": out})
    assert found["fits"]
    plan = found[
        "plan"
    ]  # of the worker's process, whose libraries may take other room than those loaded here
    assert (
        max(plan["peak_bytes"].values()) == found["peak_bytes"] <= plan["budget_bytes"] == real.budget_bytes
    )
    assert plan["compulsory_bytes"] == real.to_dict()["compulsory_bytes"]
    assert plan.keys() == real.to_dict().keys()
    assert found["explanation"].startswith("matmul: A[700, 900] float32 on disk, B[900, 500]")
    assert "/" not in found["headline"]


def test_a_product_in_too_little_memory_says_what_it_needs(client: TestClient) -> None:
    body = {"kind": "matmul", "a": [4000, 4000], "b": [4000, 4000], "budget": "1KiB"}
    found = answered(client, "/v1/plan", body)
    assert not found["fits"]
    assert found["needed_bytes"] > 1024
    assert "[matmul]" in found["refused"]


def test_an_offloaded_model_is_planned(client: TestClient) -> None:
    body = {"kind": "offload", "config": TINY, "context": 16, "train": True, "budget": "64MB"}
    found = answered(client, "/v1/plan", body)
    assert found["fits"], found
    assert found["plan"]["train"]
    assert found["peak_bytes"] <= 64_000_000
    small = answered(client, "/v1/plan", {**body, "budget": "1kB"})
    assert not small["fits"]
    assert small["needed_bytes"] > 1000


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/estimate", {}),
        ("/v1/estimate", {"config": {}}),
        ("/v1/estimate", {"config": []}),
        ("/v1/estimate", {"config": {"model_type": 7}}),
        ("/v1/estimate", {"config": {**TINY, "n_layer": 10**6}}),
        ("/v1/estimate", {"config": {**TINY, "vocab_size": 10**9}}),
        ("/v1/estimate", {"config": {**TINY, "num_labels": 10**6}}),
        ("/v1/estimate", {"config": {**TINY, "id2label": {str(n): "x" * 20 for n in range(4000)}}}),
        ("/v1/estimate", {"config": {**TINY, "backbone": "/etc/passwd"}}),
        ("/v1/estimate", {"config": {**TINY, "vision_config": {"use_pretrained_backbone": True}}}),
        ("/v1/estimate", {"config": {**TINY, "num_hidden_layers": 200, "num_experts": 2000}}),
        ("/v1/estimate", {"config": TINY, "batch": 0}),
        ("/v1/estimate", {"config": TINY, "batch": 65_536, "context": 1_048_576}),
        ("/v1/estimate", {"config": TINY, "dtypes": ["int4"]}),
        ("/v1/estimate", {"config": TINY, "budget": "50%"}),
        ("/v1/estimate", {"config": "/etc/passwd"}),
        ("/v1/captures", {"config": TINY, "training": True, "generate_tokens": 3}),
        ("/v1/captures", {"config": TINY, "steps": 9}),
        ("/v1/captures", {"config": TINY, "trust_remote_code": True}),
        ("/v1/plan", {"kind": "matmul", "a": [2, 3], "b": [3, 4]}),
        ("/v1/plan", {"kind": "matmul", "a": [-2, 3], "b": [3, 4], "budget": "1MB"}),
        ("/v1/plan", {"kind": "matmul", "a": ["A.npy"], "b": [3, 4], "budget": "1MB"}),
        ("/v1/plan", {"kind": "files", "budget": "1MB"}),
        ("/v1/plan", {"budget": "1MB"}),
    ],
)
def test_what_cannot_be_meant_is_a_problem(client: TestClient, path: str, body: Any) -> None:
    reply = client.post(path, json=body)
    assert reply.status_code == 422, reply.text
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.json()["errors"]


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/v1/estimate", {"config": {"model_type": "no-such-model"}}, "no-such-model"),
        ("/v1/estimate", {"config": {"model_type": "gpt2", "n_embd": 7, "n_head": 2}}, "makes no model"),
        ("/v1/captures", {"config": {"model_type": "gpt2", "n_layer": "two"}}, "makes no model"),
        ("/v1/estimate", {"config": {"model_type": "gpt3"}}, "did you mean"),
        (
            "/v1/estimate",
            {"config": {"model_type": "llama", "hidden_size": -1}},
            "hidden_size=-1 is negative",
        ),
        (
            "/v1/estimate",
            {"config": {"model_type": "llama", "hidden_size": 100, "num_attention_heads": 7}},
            "makes no model: The hidden size (100) is not a multiple of the number of attention heads (7);",
        ),
        ("/v1/plan", {"kind": "matmul", "a": [2, 3], "b": [4, 5], "budget": "1MB"}, "[matmul]"),
    ],
)
def test_what_makes_no_model_says_why(client: TestClient, path: str, body: Any, said: str) -> None:
    reply = reply_to(client, path, body)
    assert reply.status_code == 422, reply.text
    assert said in reply.json()["detail"]
    for riddle in ("/tmp", "pip install", "StrictDataclass"):
        assert riddle not in reply.json()["detail"]


def test_a_missing_package_names_its_extra(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "is_there", lambda module: module != "transformers")
    for path, body in (
        ("/v1/estimate", {}),
        ("/v1/captures", {}),
        ("/v1/plan", {"kind": "offload", "budget": "1GB"}),
    ):
        reply = client.post(path, json={"config": TINY, **body})
        assert reply.status_code == 501, reply.text
        assert "accelera-engine[llm]" in reply.json()["detail"]


def test_a_capture_over_the_limit_is_refused() -> None:
    limited = ServiceSettings(limits=ServiceLimits(stored_bytes=10))
    with TestClient(create_app(limited)) as client:
        reply = reply_to(client, "/v1/captures", {"config": TINY, "context": 8})
        assert reply.status_code == 422, reply.text
        assert "bytes of stored traces" in reply.json()["detail"]
        assert client.get("/v1/traces").json()["total"] == 0


def test_what_could_load_or_run_is_left_out() -> None:
    config = {
        **TINY,
        "_name_or_path": "/etc",
        "text_config": {
            "model_type": "x",
            "auto_map": {},
            "attn_implementation": "kernels/evil",
            "use_timm_backbone": False,
        },
    }
    found = checked_config(config)
    assert "auto_map" not in json.dumps(found)
    assert "evil" not in json.dumps(found)
    assert "_name_or_path" not in found
    assert found["text_config"] == {"model_type": "x", "use_timm_backbone": False}
    deep: Any = {"model_type": "gpt2"}
    for _ in range(100):
        deep = {"model_type": "gpt2", "inner": deep}
    with pytest.raises(ValueError, match="levels deep"):
        checked_config(deep)


def test_the_examples_are_answered(client: TestClient) -> None:
    schema = client.get("/openapi.json").json()
    bodies = schema["components"]["schemas"]
    asked = {
        "AdviceRequest": "advise",
        "BoundsRequest": "bounds",
        "SweepRequest": "sweeps",
        "KeptRun": "runs",
    }
    for name, path in asked.items():
        for example in bodies[name]["examples"]:
            assert reply_to(client, f"/v1/{path}", example).status_code in (200, 201), name
    for name in ("Estimating", "Capturing", "ProductPlanning", "OffloadPlanning"):
        (example,) = bodies[name]["examples"]
        getattr(model_schemas, name).model_validate(example)
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            refused = {code: each for code, each in operation["responses"].items() if int(code) >= 400}
            assert path.endswith("/health") or {"401", "429", "503"} <= refused.keys(), path
            for each in refused.values():
                assert set(each["content"]) == {"application/problem+json"}, path


def test_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub.errors import OfflineModeIsEnabled

    from accelera.service.model_schemas import Estimating
    from accelera.service.model_work import _config_file

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with (
        _config_file(Estimating.model_validate({"config": TINY}), lambda *_: None),
        pytest.raises(OfflineModeIsEnabled),
    ):
        huggingface_hub.model_info("gpt2")


def test_a_placeholder_lies_as_a_file_does(tmp_path: Path) -> None:
    from accelera.stores import open_store

    np.save(tmp_path / "x.npy", np.zeros((3, 4, 5), np.float32))
    one = Placeholder("x", (3, 4, 5), "float32")
    real = open_store(str(tmp_path / "x.npy"))
    assert (one.layout, one.scratch_bytes, one.tier) == (real.layout, real.scratch_bytes, real.tier)
    with pytest.raises(AssertionError, match="reads nothing"):
        one.read(None, None)
