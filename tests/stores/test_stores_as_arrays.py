"""Stores as sources of dask arrays and as operands, and data frames as stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import zarr

from accelera import MatrixEngine, open_store
from accelera.errors import DTypeError, StoreError, UnsupportedError
from accelera.stores import Store

VALUES = np.random.default_rng(2).random((330, 90))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    np.save(tmp_path / "table.npy", VALUES)
    return open_store(tmp_path / "table.npy")


@pytest.mark.parametrize("chunks", [(110, 45), (330, 90), (7, 90)])
def test_dask_reads_parts_of_a_store(store: Store, chunks: tuple[int, int]) -> None:
    array = da.from_array(store, chunks=chunks)
    np.testing.assert_array_equal(array.compute(), VALUES)
    np.testing.assert_array_equal(array.max(axis=0).compute(), VALUES.max(0))
    np.testing.assert_array_equal((array[3:40, 5] * 2).compute(), VALUES[3:40, 5] * 2)
    np.testing.assert_allclose((array.T @ array).compute(), VALUES.T @ VALUES)


def test_dask_reads_parts_of_a_view(store: Store) -> None:
    array = da.from_array(store[::2].T, chunks=(45, 33))
    np.testing.assert_array_equal((array + 1).compute(), VALUES[::2].T + 1)


@pytest.mark.parametrize("axis", [None, 0, 1, (0, 1)])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("name", ["sum", "mean", "var", "std", "min", "max", "prod", "any", "all"])
def test_reductions_equal_numpys(store: Store, name: str, axis: Any, keepdims: bool) -> None:
    actual = np.asarray(getattr(store, name)(axis, keepdims=keepdims))
    expected = getattr(VALUES, name)(axis=axis, keepdims=keepdims)
    assert actual.shape == np.shape(expected)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_ddof_is_that_of_numpy(store: Store) -> None:
    np.testing.assert_allclose(np.asarray(store.std(0, ddof=1)), VALUES.std(axis=0, ddof=1))


def test_operators_compute_products(store: Store) -> None:
    np.testing.assert_allclose(np.asarray(store @ np.ones((90, 2))), VALUES @ np.ones((90, 2)))
    np.testing.assert_allclose(np.asarray(np.ones((2, 330)) @ store), np.ones((2, 330)) @ VALUES)
    np.testing.assert_allclose(np.asarray(store.T @ store), VALUES.T @ VALUES)


def test_length_size_and_truth(store: Store) -> None:
    assert (len(store), store.size, bool(store), bool(store[:0])) == (330, 29_700, True, True)
    with pytest.raises(TypeError, match="no axes"):
        len(store[0, 0])


def test_functions_of_numpy_do_not_load_a_store(store: Store) -> None:
    for part in (store, store.T, store[:10]):
        with pytest.raises(DTypeError, match="which NumPy would load whole"):
            np.sqrt(part)
        with pytest.raises(DTypeError, match="which NumPy would load whole"):
            np.add(VALUES[:10], part)


LARGE = np.random.default_rng(5).random((5000, 120), dtype=np.float32)


def test_homogeneous_frame_is_an_operand_without_a_copy() -> None:
    frame = pd.DataFrame(LARGE, columns=[f"c{index}" for index in range(120)])
    assert np.shares_memory(open_store(frame).resident(), np.asarray(frame))
    engine = MatrixEngine("cpu", budget="64MiB")
    np.testing.assert_allclose(np.asarray(engine.gram(frame)), LARGE.T @ LARGE, rtol=1e-3)
    np.testing.assert_allclose(np.asarray(engine.matmul(LARGE.T, frame)), LARGE.T @ LARGE, rtol=1e-3)
    np.testing.assert_allclose(np.asarray(engine.mean(frame, axis=0)), LARGE.mean(0), rtol=1e-5)


def test_frame_of_several_types_states_its_size() -> None:
    frame = pd.DataFrame({"a": np.ones(200_000, np.float32), "b": np.ones(200_000, np.float64)})
    with pytest.raises(StoreError, match=r"a DataFrame of 2\.3 MiB could only be loaded whole"):
        open_store(frame)


def test_small_frame_of_several_types_is_copied() -> None:
    frame = pd.DataFrame({"a": np.arange(9, dtype=np.float32), "b": np.arange(9.0)})
    np.testing.assert_array_equal(open_store(frame).to_numpy(), frame.to_numpy())


def test_chunks_of_a_zarr_array_are_those_of_dask(tmp_path: Path) -> None:
    values = np.arange(60 * 50, dtype="float32").reshape(60, 50)
    array = zarr.create_array(str(tmp_path / "a.zarr"), shape=(60, 50), chunks=(20, 10), dtype="float32")
    array[:] = values
    with open_store(tmp_path / "a.zarr") as store:
        assert store.chunks == (20, 10)
        lazy_array = da.from_array(store, chunks="auto")
        assert {size % 20 for size in lazy_array.chunks[0][:-1]} <= {0}
        assert np.array_equal(lazy_array.sum(axis=0).compute(), values.sum(axis=0))
    assert open_store(values).chunks is None


REDUCTIONS = ("sum", "mean", "var", "std", "prod", "min", "max", "any", "all")


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_reductions_of_numpy_take_a_store(store: Store, name: str, axis: int | None) -> None:
    np.testing.assert_allclose(getattr(np, name)(store, axis=axis), getattr(np, name)(VALUES, axis=axis))
    np.testing.assert_allclose(getattr(store, name)(axis), getattr(VALUES, name)(axis))


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("chunks", [(110, 45), (330, 90)])
def test_reductions_of_dask_take_a_store(store: Store, name: str, chunks: tuple[int, int]) -> None:
    array = da.from_array(store, chunks=chunks)
    np.testing.assert_allclose(getattr(array, name)(axis=0).compute(), getattr(VALUES, name)(axis=0))


def test_reductions_of_a_store_refuse_out(store: Store) -> None:
    with pytest.raises(UnsupportedError, match=r"\[sum\] out=ndarray: .*expected None"):
        np.sum(store, axis=0, out=np.empty(90))


def test_sum_of_a_store_converts_to_dtype() -> None:
    small = np.full(1000, 100, dtype="int8")
    assert np.sum(open_store(small), dtype="int64") == 100_000
