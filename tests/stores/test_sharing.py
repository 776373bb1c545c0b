"""Stores opened again by another process: the same elements, and results that several write."""

from __future__ import annotations

import pickle
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accelera.errors import StoreError
from accelera.stores import Store, open_store
from accelera.stores._internal import address_of, create_store, join_output

SUFFIXES = [".npy", ".safetensors", ".zarr", ".bin"]


def stored(path: Path, array: np.ndarray[Any, Any]) -> Store:
    output = create_store(path, array.shape, array.dtype)
    output.write(tuple(slice(0, size) for size in array.shape), array)
    output.commit()
    described = {"shape": array.shape, "dtype": array.dtype} if path.suffix == ".bin" else {}
    return open_store(path, **described)


def write_rows(path: Path, start: int) -> None:
    joined = join_output(path, (8, 6), np.dtype("f4"), chunk=(4, 6) if path.suffix == ".zarr" else None)
    joined.write((slice(start, start + 4), slice(0, 6)), np.full((4, 6), start, "f4"))
    joined.flush()
    joined.abort()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_address_shows_the_same_view_after_pickling(tmp_path: Path, suffix: str) -> None:
    array = np.arange(60, dtype="f4").reshape(10, 6)
    store = stored(tmp_path / f"a{suffix}", array)
    address = pickle.loads(pickle.dumps(address_of(store.T[1:, ::2])))
    with address.opened() as again:
        assert np.array_equal(again.to_numpy(), array.T[1:, ::2])


def test_what_lies_in_memory_has_no_address() -> None:
    assert address_of(open_store(np.ones(3))) is None
    assert address_of(open_store(np.ones((3, 4))).T) is None


def test_another_file_of_the_same_name_is_not_taken_for_it(tmp_path: Path) -> None:
    address = address_of(stored(tmp_path / "a.npy", np.zeros((4, 4), "f4")))
    assert address is not None
    stored(tmp_path / "a.npy", np.zeros((400, 400), "f4"))
    with pytest.raises(StoreError, match="another file"), address.opened():
        pass


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_of_the_same_size_with_other_elements_is_not_taken_for_it(tmp_path: Path, suffix: str) -> None:
    array = np.arange(600_000, dtype="f4").reshape(600, 1000)
    address = address_of(stored(tmp_path / f"a{suffix}", array))
    assert address is not None
    stored(tmp_path / f"a{suffix}", array)
    with address.opened() as copied:
        assert copied.shape == (600, 1000)
    for changed in (array + 1, np.where(np.arange(600)[:, None] == 599, 0, array)):
        stored(tmp_path / f"a{suffix}", changed.astype("f4"))
        with pytest.raises(StoreError, match="is another file here"), address.opened():
            pass


@pytest.mark.parametrize("shape", [(0, 4), (4,), ()])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_small_files_have_addresses_too(tmp_path: Path, suffix: str, shape: tuple[int, ...]) -> None:
    address = address_of(stored(tmp_path / f"a{suffix}", np.ones(shape, "f4")))
    assert address is not None
    with address.opened() as again:
        assert again.to_numpy().tolist() == np.ones(shape).tolist()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_processes_write_parts_of_one_result_that_its_owner_publishes(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"c{suffix}"
    chunk = (4, 6) if suffix == ".zarr" else None
    output = create_store(path, (8, 6), "f4", chunk=chunk)
    writers = [get_context("spawn").Process(target=write_rows, args=(path, start)) for start in (0, 4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(240)
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert not path.exists()
    output.commit()
    described: dict[str, Any] = {"shape": (8, 6), "dtype": "f4"} if suffix == ".bin" else {}
    found = open_store(path, **described).to_numpy()
    assert found.tolist() == [[0.0] * 6] * 4 + [[4.0] * 6] * 4


@pytest.mark.parametrize("suffix", [".npy", ".zarr"])
def test_who_joins_neither_publishes_nor_removes(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"c{suffix}"
    with pytest.raises(StoreError):
        join_output(path, (8, 6), np.dtype("f4"))
    output = create_store(path, (8, 6), "f4")
    joined = join_output(path, (8, 6), np.dtype("f4"))
    with pytest.raises(StoreError, match="published by the run that began it"):
        joined.commit()
    joined.abort()
    output.commit()
    assert path.exists()
