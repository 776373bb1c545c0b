"""Products of SciPy's sparse matrices and dense operands anywhere, against SciPy and NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from accelera import _native
from accelera.engine import Matrix, MatrixEngine, lazy
from accelera.errors import AcceleraError, BudgetExceededError, DTypeError, ShapeError, StoreFormatError
from tests.matmul.products import values


@pytest.fixture
def engine() -> MatrixEngine:
    return MatrixEngine("cpu", enable_progress=False, budget="64MiB")


def sparse(m: int, k: int, dtype: Any, form: str, seed: int = 0, density: float = 0.2) -> Any:
    rng = np.random.default_rng(seed)
    dense = (
        values((m, k), dtype, seed)
        if np.dtype(dtype).kind != "i"
        else rng.integers(-9, 9, (m, k)).astype(dtype)
    )
    dense[rng.random((m, k)) >= density] = 0
    return sp.csr_array(dense).asformat(form)


@given(
    st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 150)),
    st.sampled_from(["f4", "f8", "c8", "c16", "i4", "i8"]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 3),
    st.booleans(),
    st.data(),
)
@settings(max_examples=150, deadline=None)
def test_the_kernel_on_blocks_of_any_strides(
    shape: tuple[int, int, int], dtype: str, by_rows: bool, is_sorted: bool, look: int, add: bool, data: Any
) -> None:
    m, k, n = shape
    s = sparse(m, k, dtype, "csr" if by_rows else "csc", m + k)
    if not is_sorted:
        _shuffle(s)
    rows = sorted(data.draw(st.tuples(st.integers(0, m), st.integers(0, m))))
    cols = sorted(data.draw(st.tuples(st.integers(0, k), st.integers(0, k))))
    b, c = values((k, n), dtype, 1)[cols[0] : cols[1]], values((rows[1] - rows[0], n), dtype, 2)
    b, c = (np.asfortranarray(b), np.asfortranarray(c)) if look & 1 else (b, c.copy())
    b, c = (b[:, ::-1], c[:, ::-1]) if look & 2 else (b, c)
    with np.errstate(all="ignore"):
        wanted = s.toarray()[rows[0] : rows[1], cols[0] : cols[1]] @ b + (c if add else 0)
    index = s.indptr.dtype
    _native.spmm(
        s.indptr, s.indices.astype(index), s.data, by_rows, is_sorted, tuple(rows), tuple(cols), b, c, add
    )
    np.testing.assert_allclose(c, wanted, rtol=1e-3 if dtype in ("f4", "c8") else 1e-9, atol=1e-4)


def _shuffle(s: Any) -> None:
    """Reverse the entries of every line, which SciPy calls not sorted."""
    for begin, end in zip(s.indptr[:-1], s.indptr[1:], strict=True):
        s.indices[begin:end] = s.indices[begin:end][::-1].copy()
        s.data[begin:end] = s.data[begin:end][::-1].copy()
    s.has_sorted_indices = False


@pytest.mark.parametrize("form", ["csr", "csc"])
@pytest.mark.parametrize("kind", ["array", "matrix"])
def test_products_with_everything(form: str, kind: str, engine: MatrixEngine, tmp_path: Path) -> None:
    s = sparse(300, 200, "f8", form)
    s = s if kind == "array" else sp.csr_matrix(s).asformat(form)
    right, left = values((200, 50), "f8", 1), values((70, 300), "f8", 2)
    np.save(tmp_path / "right.npy", right)
    np.save(tmp_path / "left.npy", np.asfortranarray(left))
    dense = s.toarray()
    for operand in (right, tmp_path / "right.npy", Matrix(right), np.asfortranarray(right)):
        np.testing.assert_allclose(np.asarray(engine.matmul(s, operand)), dense @ right, rtol=1e-9)
    for operand in (left, tmp_path / "left.npy", Matrix(left)):
        np.testing.assert_allclose(np.asarray(engine.matmul(operand, s)), left @ dense, rtol=1e-9)
    np.testing.assert_allclose(np.asarray(engine.matmul(s, right[:, 0])), dense @ right[:, 0], rtol=1e-9)
    np.testing.assert_allclose(np.asarray(engine.matmul(left[0], s)), left[0] @ dense, rtol=1e-9)
    for out in ("out.npy", "out.zarr"):
        found = engine.matmul(s, tmp_path / "right.npy", out=tmp_path / out)
        np.testing.assert_allclose(np.asarray(found), dense @ right, rtol=1e-9)
    array = np.empty((300, 50))
    engine.matmul(s, right, out=array)
    np.testing.assert_allclose(array, dense @ right, rtol=1e-9)


PROMOTED = [
    ("f4", "f8", "f8"),
    ("f8", "f4", "f8"),
    ("i4", "f8", "f8"),
    ("f4", "f2", "f4"),
    ("c8", "f8", "c16"),
    ("i2", "i8", "i8"),
]


@pytest.mark.parametrize(("s", "d", "wanted"), PROMOTED)
def test_types_are_promoted(s: str, d: str, wanted: str, engine: MatrixEngine) -> None:
    matrix, dense = sparse(30, 20, s, "csr"), (np.arange(80).reshape(20, 4) % 7).astype(d)
    found = np.asarray(engine.matmul(matrix, dense))
    assert found.dtype == wanted
    np.testing.assert_allclose(found, matrix.toarray().astype("c16") @ dense, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("order", ["sparse first", "sparse last"])
def test_files_larger_than_the_budget_go_in_bands(order: str, engine: MatrixEngine, tmp_path: Path) -> None:
    s = sparse(3_000, 4_000, "f4", "csr", density=0.01)
    dense = values((4_000, 2_500) if order == "sparse first" else (2_500, 3_000), "f4", 1)
    np.save(tmp_path / "dense.npy", dense)
    factors = (s, tmp_path / "dense.npy") if order == "sparse first" else (tmp_path / "dense.npy", s)
    with pytest.raises(BudgetExceededError) as refused:
        engine.plan(*factors, out=tmp_path / "out.npy", budget=1)
    budget = refused.value.needed_bytes + (2 << 20)
    plan = engine.plan(*factors, out=tmp_path / "out.npy", budget=budget)
    assert plan.forecast.steps > 1
    engine.matmul(*factors, out=tmp_path / "out.npy", budget=budget)
    assert engine.last_report.moved_bytes == engine.last_report.plan.moved_bytes
    wanted = s @ dense if order == "sparse first" else dense @ s
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), wanted, rtol=1e-3, atol=1e-3)


def test_a_run_is_resumed_with_the_same_matrix_only(engine: MatrixEngine, tmp_path: Path) -> None:
    from accelera.engine import RunObserver
    from accelera.errors import StoreChangedError

    class Stop(RunObserver):
        def on_progress(self, progress: Any) -> None:
            raise KeyboardInterrupt

    s, dense = sparse(900, 800, "f8", "csr"), values((800, 2_000), "f8", 1)
    np.save(tmp_path / "b.npy", dense)
    with pytest.raises(KeyboardInterrupt):
        engine.matmul(s, tmp_path / "b.npy", out=tmp_path / "c.npy", budget="34MiB", observers=[Stop()])
    if (tmp_path / "c.npy.journal").exists():
        with pytest.raises(StoreChangedError):
            engine.matmul(s * 2, tmp_path / "b.npy", out=tmp_path / "c.npy", budget="34MiB", resume=True)
        engine.matmul(s, tmp_path / "b.npy", out=tmp_path / "c.npy", budget="34MiB", resume=True)
        np.testing.assert_allclose(np.load(tmp_path / "c.npy"), s @ dense, rtol=1e-9)


def test_nothing_is_made_dense_silently(engine: MatrixEngine, tmp_path: Path) -> None:
    s, dense = sparse(20, 20, "f8", "csr"), np.ones((20, 20))
    x = lazy(dense)
    for use in (
        lambda: engine.add(s, dense),
        lambda: engine.add(dense, s),
        lambda: engine.sum(s),
        lambda: engine.gram(s),
        lambda: engine.copy(s, out=tmp_path / "a.npy"),
        lambda: engine.transpose(s),
        lambda: lazy(s),
        lambda: x + s,
        lambda: x @ s,
        lambda: Matrix(s),
        lambda: engine.matmul(s, s),
        lambda: engine.matmul(s, np.ones((2, 20, 3))),
        lambda: engine.matmul(s.tocoo(), dense),
        lambda: engine.matmul(s.astype(bool), np.ones((20, 2), bool)),
        lambda: engine.matmul(s.astype("i1"), np.ones((20, 2), "i1")),
    ):
        with pytest.raises(AcceleraError):
            use()
    with pytest.raises(ShapeError, match="do not fit"):
        engine.matmul(s, np.ones((21, 2)))
    with pytest.raises(DTypeError, match="tocsr"):
        engine.matmul(s.tolil(), dense)
    assert not list(tmp_path.iterdir())


def test_damaged_matrices_are_refused(engine: MatrixEngine) -> None:
    for damage in ("indices", "indptr"):
        s = sparse(20, 20, "f8", "csr")
        getattr(s, damage)[3] = 10_000
        with pytest.raises(StoreFormatError, match="leave it"):
            engine.matmul(s, np.ones((20, 2)))
