"""``accelera copy``, ``transpose`` and ``gram``: one file read, one written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.conftest import Case

Run = Callable[..., Any]


def test_copy_to_another_format_and_type(case: Case, run: Run) -> None:
    ran = run("copy", "A.npy", "A.raw", "--dtype", "float64", "--budget", "32MiB")
    assert ran.exit_code == 0, ran.output
    assert ran.stdout.startswith("A.raw: float64[512, 384]")
    assert np.array_equal(np.fromfile("A.raw").reshape(512, 384), case.a)


def test_copy_from_a_file_without_a_header(case: Case, run: Run) -> None:
    case.a.tofile("A.raw")
    described = ["--source-shape", "512x384", "--source-dtype", "float32"]
    assert run("copy", "A.raw", "copy.npy", "-q", *described).exit_code == 0
    assert np.array_equal(np.load("copy.npy"), case.a)


def test_copy_refuses_what_would_be_lost(case: Case, run: Run) -> None:
    ran = run("copy", "A.npy", "A.raw", "--dtype", "int8")
    assert ran.exit_code == 2
    assert not Path("A.raw").exists()


def test_transpose(case: Case, run: Run) -> None:
    found = json.loads(run("transpose", "A.npy", "At.npy", "--json").stdout)
    assert found["result"]["shape"] == [384, 512]
    assert np.array_equal(np.load("At.npy"), case.a.T)


def test_transpose_of_chosen_axes(case: Case, run: Run) -> None:
    cube = np.arange(24.0).reshape(2, 3, 4)
    np.save("cube.npy", cube)
    assert run("transpose", "cube.npy", "turned.npy", "--axes", "0,2,1").exit_code == 0
    assert np.array_equal(np.load("turned.npy"), cube.transpose(0, 2, 1))
    assert run("transpose", "cube.npy", "turned.npy", "--axes", "0,1").exit_code == 2
    assert run("transpose", "cube.npy", "turned.npy", "--axes", "rows").exit_code == 2


@pytest.mark.parametrize("side", ["left", "right"])
def test_gram(side: str, case: Case, run: Run) -> None:
    assert run("gram", "A.npy", "-o", "G.npy", "--side", side).exit_code == 0
    exact = case.a.astype(np.float64)
    exact = exact.T @ exact if side == "left" else exact @ exact.T
    assert np.allclose(np.load("G.npy"), exact, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("verb", ["copy", "transpose"])
def test_a_file_is_not_written_over_itself(verb: str, case: Case, run: Run) -> None:
    ran = run(verb, "A.npy", "A.npy")
    assert ran.exit_code == 4
    assert "operand" in ran.stderr
    assert np.array_equal(np.load("A.npy"), case.a)


@pytest.mark.parametrize("verb", ["copy", "transpose", "matmul", "gram"])
def test_zarr_results_with_chunks_and_codec(verb: str, case: Case, run: Run) -> None:
    zarr = pytest.importorskip("zarr", minversion="3", reason="the extra zarr is not installed")
    inputs = {"matmul": ["A.npy", "B.npy", "-o"], "gram": ["A.npy", "-o"]}.get(verb, ["A.npy"])
    ran = run(verb, *inputs, "C.zarr", "--chunks", "100x64", "--codec", "zstd:3", "-q")
    assert ran.exit_code == 0, ran.output
    made = zarr.open_array(store="C.zarr", mode="r")
    assert made.chunks == (100, 64)
    assert "zstd" in str(made.compressors).lower()
    wrong = (["--codec", "zip"], ["--chunks", "3"], ["--chunks", "many"], ["--codec", "zstd:x"])
    for options in wrong:
        assert run(verb, *inputs, "D.zarr", *options).exit_code == 2
    assert run(verb, *inputs, "D.npy", "--codec", "zstd").exit_code == 2
    assert not list(Path().glob("D.*"))


def test_hdf5_files_in_and_out(case: Case, run: Run) -> None:
    h5py = pytest.importorskip("h5py", reason="the extra hdf5 is not installed")
    assert run("copy", "A.npy", "all.h5::group/A", "-q").exit_code == 0
    ran = run("matmul", "all.h5::group/A", "B.npy", "-o", "C.h5", "--budget", "40MiB")
    assert ran.exit_code == 0, ran.output
    with h5py.File("C.h5") as file:
        assert np.allclose(file["data"][...], case.a @ case.b, rtol=1e-4, atol=1e-3)
    refused = run("copy", "A.npy", "all.h5::other", "-q")
    assert refused.exit_code == 4
    assert "group/A" in refused.output
