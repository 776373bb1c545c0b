"""``accelera trace generate``: a file that reads as the trace the library makes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accelera import generate_synthetic_trace
from accelera.trace import read_trace
from accelera.trace._internal import content_hash


def test_writes_the_trace(run: Callable[..., Any], tmp_path: Path) -> None:
    path = str(tmp_path / "trace.parquet")
    shape = ["--num-layers", "2", "--batch-size", "3", "--seq-length", "17", "--reuse-probability", "0.5"]
    more = ["--mode", "training", "--seed", "4", "--dtype", "bfloat16"]
    ran = run("trace", "generate", "--model-type", "moe", *shape, *more, "-o", path, "--json")
    assert ran.exit_code == 0, ran.output
    wanted = generate_synthetic_trace("MoE", 2, 3, 17, 0.5, mode="training", seed=4, dtype="bfloat16")
    assert content_hash(read_trace(path)) == content_hash(wanted)
    told = json.loads(ran.stdout)
    assert (told["accesses"], told["model_type"]) == (wanted.access_count, "MoE")
    assert told["footprint_bytes"] == wanted.footprint_bytes


def test_says_what_it_wrote(run: Callable[..., Any], tmp_path: Path) -> None:
    ran = run("trace", "generate", "-o", str(tmp_path / "trace.csv"))
    assert "Trace(Transformer, 580 accesses" in ran.stdout


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--model-type", "moo"], "MoE"),
        (["--num-layers", "0"], "num_layers=0"),
        (["--dtype", "int3"], "int3"),
        (["--num-layers", "1000000000"], "at most 10,000,000 are made"),
        (["--seq-length", "1000000000000"], "over 2**62"),
        (["--mode", "decode", "--seq-length", "10000000", "--block-tokens", "1"], "larger block_tokens"),
    ],
)
def test_a_shape_that_cannot_be_meant_is_bad_usage(
    run: Callable[..., Any], tmp_path: Path, wrong: list[str], said: str
) -> None:
    path = tmp_path / "trace.parquet"
    ran = run("trace", "generate", *wrong, "-o", str(path), "--json")
    assert not path.exists()
    assert said in json.loads(ran.stdout)["error"]["message"]
    assert ran.exit_code == 2
