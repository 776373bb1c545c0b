"""``accelera matmul``: the result, the figures beside it, and the files it takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.cli.conftest import Case

Run = Callable[..., Any]


def test_the_product_and_a_table(case: Case, run: Run) -> None:
    ran = run("matmul", "A.npy", "B.npy", "-o", "C.npy", "--budget", "64MiB")
    assert ran.exit_code == 0
    assert case.is_product()
    assert ran.stderr == ""
    lines = ran.stdout.splitlines()
    assert lines[0].startswith("C.npy: float32[512, 448], 896.0 KiB")
    assert [line[:14].strip() for line in lines[2:]] == [
        "peak of ram",
        "hits",
        "misses",
        "evictions",
        "bytes read",
        "bytes written",
        "waiting",
        "time",
    ]


def test_json_has_predicted_and_measured(case: Case, run: Run) -> None:
    ran = run("matmul", "A.npy", "B.npy", "-o", "C.npy", "--budget", case.tight_budget(), "--json")
    found = json.loads(ran.stdout)
    assert found["result"] == {"path": "C.npy", "shape": [512, 448], "dtype": "float32", "bytes": 917504}
    assert found["bytes_written"] == found["plan"]["bytes_written"] == 917504
    assert found["bytes_read"] == found["plan"]["bytes_read"]
    assert found["steps_run"] == found["plan"]["steps"]
    assert 0 <= found["process_peak_bytes"] <= found["plan"]["peak_bytes"]["ram"]


def test_quiet_says_nothing(case: Case, run: Run) -> None:
    ran = run("matmul", "A.npy", "B.npy", "-o", "C.npy", "-q")
    assert (ran.exit_code, ran.output) == (0, "")
    assert case.is_product()


def test_a_device_by_name(case: Case, run: Run) -> None:
    ran = run("matmul", "A.npy", "B.npy", "-o", "C.npy", "--device", "sim:64MiB")
    assert ran.exit_code == 0, ran.output
    assert case.is_product()
    assert "peak of sim" in ran.stdout


def test_the_device_of_the_environment(case: Case, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERA_DEVICE", "sim:64MiB")
    ran = run("matmul", "A.npy", "B.npy", "-o", "C.npy", "--json")
    assert json.loads(ran.stdout)["device"] == "sim"


def test_files_without_a_header(case: Case, run: Run) -> None:
    Path("A.bin").write_bytes(b"skipped." + case.a.tobytes())
    case.b.tofile("B.raw")
    described = ["--a-shape", "512x384", "--a-dtype", "float32", "--a-offset", "8"]
    described += ["--b-shape", "384,448", "--b-dtype", "f4"]
    ran = run("matmul", "A.bin", "B.raw", "-o", "C.npy", *described)
    assert ran.exit_code == 0, ran.output
    assert case.is_product()


def test_arrays_by_key(case: Case, run: Run) -> None:
    save_file({"left": case.a, "right": case.b}, "ab.safetensors")
    ran = run("matmul", "ab.safetensors::left", "ab.safetensors::right", "-o", "C.npy")
    assert ran.exit_code == 0, ran.output
    assert case.is_product()


def test_the_file_of_an_operand_is_not_written(case: Case, run: Run) -> None:
    save_file({"left": case.a}, "a.safetensors")
    for key in ("left", "product"):
        ran = run("matmul", "a.safetensors::left", "B.npy", "-o", f"a.safetensors::{key}")
        assert ran.exit_code == 4
        assert np.array_equal(load_file("a.safetensors")["left"], case.a)


def test_a_result_in_the_home_folder(case: Case, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(case.folder))
    assert run("matmul", "~/A.npy", "B.npy", "-o", "~/C.npy").exit_code == 0
    assert case.is_product()


def test_bfloat16_in_npy_is_named(case: Case, run: Run) -> None:
    np.save("A.npy", case.a.astype(ml_dtypes.bfloat16))
    np.save("B.npy", case.b.astype(ml_dtypes.bfloat16))
    assert run("matmul", "A.npy", "B.npy", "-o", "C.npy").exit_code == 2
    named = ["--a-dtype", "bfloat16", "--b-dtype", "bfloat16"]
    assert run("matmul", "A.npy", "B.npy", "-o", "C.npy", *named).exit_code == 0


def test_an_older_result_stays_until_the_new_one_is_complete(case: Case, run: Run) -> None:
    Path("C.npy").write_bytes(b"old")
    assert run("matmul", "A.npy", "A.npy", "-o", "C.npy").exit_code == 2
    assert Path("C.npy").read_bytes() == b"old"
    assert run("matmul", "A.npy", "B.npy", "-o", "C.npy").exit_code == 0
    assert case.is_product()
    assert sorted(path.name for path in case.folder.iterdir()) == ["A.npy", "B.npy", "C.npy"]
