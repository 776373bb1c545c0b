"""Frames of polars and pandas as operands: columns are read from their memory, nulls are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from accelera import MatrixEngine, open_store
from accelera.errors import DTypeError, StoreError

VALUES = np.random.default_rng(11).random((60_000, 5))


def frame_of(array: np.ndarray[Any, Any], part_count: int = 1) -> Any:
    """Return a polars frame of an array's columns, each in several arrays in memory."""
    names = [f"c{place}" for place in range(array.shape[1])]
    parts = [
        pl.DataFrame(dict(zip(names, part.T, strict=True))) for part in np.array_split(array, part_count)
    ]
    return pl.concat(parts, rechunk=False)


@pytest.mark.parametrize("part_count", [1, 3])
@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "float32", "float64"])
def test_polars_frame_equals_its_array(part_count: int, dtype: str) -> None:
    frame = frame_of((VALUES * 100).astype(dtype), part_count)
    store = open_store(frame)
    assert (store.shape, store.dtype, store.tier) == (frame.shape, np.dtype(dtype), "ram")
    expected = frame.to_numpy()
    np.testing.assert_array_equal(store.to_numpy(), expected)
    for key in ((slice(7, 45_001), slice(1, 4)), (slice(None, None, -7), slice(None, None, 2)), (20_000, 3)):
        np.testing.assert_array_equal(store[key].to_numpy(), expected[key])
    np.testing.assert_array_equal(store.T[:, 5:9].to_numpy(), expected.T[:, 5:9])


@pytest.mark.parametrize("pieces", [1, 2])
def test_polars_frame_is_an_operand(pieces: int) -> None:
    engine, frame = MatrixEngine("cpu", budget="48MiB"), frame_of(VALUES, pieces)
    np.testing.assert_allclose(np.asarray(engine.gram(frame)), VALUES.T @ VALUES)
    np.testing.assert_allclose(np.asarray(engine.matmul(VALUES.T, frame)), VALUES.T @ VALUES)
    np.testing.assert_allclose(np.asarray(engine.mean(frame, axis=0)), VALUES.mean(0))


def test_polars_columns_are_not_copied() -> None:
    frame = frame_of(VALUES)
    series = frame["c2"]
    assert np.shares_memory(open_store(series).resident(), series.to_numpy())
    base = np.asfortranarray(VALUES)
    assert np.shares_memory(open_store(pl.DataFrame(base)).resident(), base)
    assert open_store(frame).scratch_bytes == 0


def test_polars_series_in_pieces_is_joined() -> None:
    series = frame_of(VALUES, 4)["c1"]
    assert series.n_chunks() == 4
    np.testing.assert_array_equal(open_store(series)[100:50_000:3].to_numpy(), VALUES[100:50_000:3, 1])


@pytest.mark.parametrize("rows", [4, 200_000])
@pytest.mark.parametrize("dtype", ["Int64", "Float64"])
def test_nulls_name_the_column(rows: int, dtype: str) -> None:
    values = [None, 1, None, *range(rows - 3)]
    frame = pl.DataFrame({"full": range(rows), "gaps": values}, schema_overrides={"gaps": getattr(pl, dtype)})
    for data in (frame, frame["gaps"]):
        with pytest.raises(DTypeError, match=r"nulls in column 'gaps' of a polars frame: 2 found"):
            open_store(data)
    with pytest.raises(DTypeError, match="gaps"):
        MatrixEngine("cpu").gram(frame)
    filled = open_store(frame.select(pl.col("gaps").fill_null(7)))
    assert filled[2, 0].to_numpy() == 7


def test_nan_is_a_number() -> None:
    store = open_store(pl.DataFrame({"a": [1.0, float("nan")], "b": [2.0, 3.0]}))
    np.testing.assert_array_equal(store.to_numpy(), [[1, 2], [np.nan, 3]])


def test_other_columns_are_refused_by_name() -> None:
    frame = pl.DataFrame({"a": [1.0], "word": ["x"]})
    with pytest.raises(DTypeError, match="column 'word' of a polars frame holds String"):
        open_store(frame)
    with pytest.raises(DTypeError, match=r"collect\(\)"):
        open_store(frame.lazy())


def test_small_polars_frame_of_several_types_is_converted() -> None:
    frame = pl.DataFrame({"a": [1, 2], "b": [1.5, 2.5]})
    np.testing.assert_array_equal(open_store(frame).to_numpy(), frame.to_numpy())
    flags = pl.DataFrame({"a": [True, False]})
    np.testing.assert_array_equal(open_store(flags).to_numpy(), flags.to_numpy())


def test_large_polars_frame_of_several_types_is_refused() -> None:
    frame = frame_of(VALUES).with_columns(pl.col("c0").cast(pl.Float32))
    with pytest.raises(StoreError, match=r"DataFrame of .* could only be loaded whole"):
        open_store(frame)


def test_frames_take_no_results() -> None:
    for frame in (frame_of(VALUES, 2), pd.DataFrame({"a": [1.0], "b": [2.0]})):
        with pytest.raises((StoreError, DTypeError), match=r"\[out\]"):
            MatrixEngine("cpu").copy(np.zeros(frame.shape), out=frame)


def test_pandas_frame_of_several_blocks_is_read_by_column() -> None:
    frame = pd.DataFrame(VALUES.copy(), columns=list("abcde"))
    frame["f"] = VALUES[:, 0] * 2
    frame["g"] = VALUES[:, 1] * 2
    store = open_store(frame)
    assert store.shape == (60_000, 7)
    np.testing.assert_array_equal(store[::9].to_numpy(), frame.to_numpy()[::9])
    gram = MatrixEngine("cpu", budget="48MiB").gram(frame)
    np.testing.assert_allclose(np.asarray(gram), frame.to_numpy().T @ frame.to_numpy())


def test_empty_frames_have_their_shape() -> None:
    empty = pl.DataFrame({"a": [], "b": []}, schema={"a": pl.Float32, "b": pl.Float32})
    assert open_store(empty).shape == (0, 2)


def test_closed_frame_is_not_read() -> None:
    store = open_store(frame_of(VALUES))
    parts = (store, store.T)
    store.close()
    for part in parts:
        with pytest.raises(StoreError, match="closed"):
            part.to_numpy()
