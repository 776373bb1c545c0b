"""Products with factors that lie in files: the engine multiplies them, within the budget."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import accelera.tensora as ts
from accelera import BudgetExceededError, stores


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two matrices of 16 MiB each."""
    folder = tmp_path_factory.mktemp("matrices")
    random = np.random.default_rng(0)
    for name, shape in (("a", (2048, 2048)), ("b", (2048, 2048))):
        np.save(folder / f"{name}.npy", random.standard_normal(shape, np.float32))
    return folder / "a.npy", folder / "b.npy"


def test_a_product_of_files_is_a_tensor(files: tuple[Path, Path]) -> None:
    a, b = files
    found = ts.matmul(a, b, budget="56MiB")
    assert isinstance(found, ts.Tensor)
    np.testing.assert_allclose(found.numpy(), np.load(a) @ np.load(b), rtol=1e-3, atol=1e-3)


def test_a_product_of_a_tensor_and_a_file_into_a_file(files: tuple[Path, Path], tmp_path: Path) -> None:
    a, b = files
    rows = ts.asarray(np.load(a)[:300], copy=True)
    product = ts.matmul(rows, stores.open_store(b), out=tmp_path / "c.npy", budget="40MiB")
    assert tuple(product.shape) == (300, 2048)
    np.testing.assert_allclose(np.load(tmp_path / "c.npy"), rows.numpy() @ np.load(b), rtol=1e-3, atol=1e-3)


def test_the_limit_of_tensors_is_the_budget(files: tuple[Path, Path], tmp_path: Path) -> None:
    ts.set_memory_limit(ts.memory_stats().live_bytes + 1000)
    try:
        with pytest.raises(BudgetExceededError, match="matmul"):
            ts.matmul(*files, out=tmp_path / "c.npy")
    finally:
        ts.set_memory_limit(None)


def test_what_does_not_fit_is_said(files: tuple[Path, Path]) -> None:
    with pytest.raises(ValueError, match="2048"):
        ts.matmul(files[0], ts.ones((3, 3)))
    with pytest.raises(TypeError, match="out and budget are for files"):
        ts.matmul(ts.ones((3, 3)), ts.ones((3, 3)), budget="1MiB")
