"""Files past the page cache by each backend: the kernel's asynchronous I/O, and a pool of threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from accelera import MatrixEngine, _native
from accelera.stores import open_store

Backend = Literal["kernel", "threads"]


@pytest.fixture(params=["kernel", "threads"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    monkeypatch.setenv("ACCELERA_DIRECT_IO", "always")
    _native.set_io_backend(request.param)
    yield request.param
    _native.set_io_backend("automatic")


def test_product_of_files_equals_numpys(backend: Backend, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((700, 700)).astype(np.float32) for _ in range(2))
    np.save(tmp_path / "A.npy", a)
    np.save(tmp_path / "B.npy", b)
    MatrixEngine("cpu").matmul(tmp_path / "A.npy", tmp_path / "B.npy", out=tmp_path / "C.npy", budget="32MiB")
    np.testing.assert_allclose(np.load(tmp_path / "C.npy"), a @ b, rtol=1e-3, atol=1e-3)


def test_regions_are_read_as_they_are(backend: Backend, tmp_path: Path) -> None:
    values = np.arange(3000 * 500, dtype=np.float64).reshape(3000, 500)
    np.save(tmp_path / "A.npy", values)
    store = open_store(tmp_path / "A.npy")
    np.testing.assert_array_equal(store[17:2900, 3:499], values[17:2900, 3:499])
    np.testing.assert_array_equal(store[:], values)


def test_forked_child_reads_too(backend: Backend, tmp_path: Path) -> None:
    values = np.arange(1 << 18, dtype=np.float64)
    np.save(tmp_path / "A.npy", values)
    assert open_store(tmp_path / "A.npy")[100:200].sum() == values[100:200].sum()
    child = os.fork()
    if child == 0:
        equal = np.array_equal(open_store(tmp_path / "A.npy")[:], values)
        os._exit(0 if equal else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match="give automatic, kernel or threads"):
        _native.set_io_backend("uring")  # type: ignore[arg-type]
