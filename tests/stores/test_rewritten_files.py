"""A file that is rewritten between opening and a run is read as it is now, or refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr

from accelera import AcceleraError, MatrixEngine, open_store
from accelera.errors import StoreChangedError

ENGINE = MatrixEngine("cpu", enable_progress=False)
Write = Callable[[Path, np.ndarray[Any, Any]], None]


def write_raw(path: Path, array: np.ndarray[Any, Any]) -> None:
    path.write_bytes(array.tobytes())


def write_safetensors(path: Path, array: np.ndarray[Any, Any]) -> None:
    from safetensors.numpy import save_file

    # A header of more than some hundred bytes, of which the last entries differ.
    others = {f"a{number:03d}": np.zeros(1, np.float32) for number in range(40)}
    save_file({**others, "z": array}, path)


def write_hdf5(path: Path, array: np.ndarray[Any, Any], **options: Any) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=array, **options)


def write_chunks(path: Path, array: np.ndarray[Any, Any]) -> None:
    write_hdf5(path, array, chunks=(4, 3), compression="gzip")


def write_zarr(zarr_format: Any) -> Write:
    def write(path: Path, array: np.ndarray[Any, Any]) -> None:
        options = {"shape": array.shape, "chunks": (4, 3), "dtype": array.dtype, "overwrite": True}
        zarr.create_array(str(path), zarr_format=zarr_format, **options)[:] = array

    return write


FORMATS: dict[str, tuple[str, Write, dict[str, Any]]] = {
    "npy": ("a.npy", np.save, {}),
    "raw": ("a.bin", write_raw, {"shape": (8, 6), "dtype": "f4"}),
    "safetensors": ("a.safetensors", write_safetensors, {"key": "z"}),
    "hdf5": ("a.h5", write_hdf5, {}),
    "hdf5 chunks": ("a.h5", write_chunks, {}),
    "zarr 2": ("a.zarr", write_zarr(2), {}),
    "zarr 3": ("a.zarr", write_zarr(3), {}),
}
OLD = np.arange(48, dtype=np.float32).reshape(8, 6)
NEW: dict[str, np.ndarray[Any, Any]] = {
    "same shape": OLD[::-1] + 100,
    "transposed shape": np.ascontiguousarray(OLD.T) + 100,
    "larger": np.ones((16, 6), np.float32),
    "smaller": np.ones((4, 6), np.float32),
    "other type": (OLD + 0.5).astype(np.float64),
    "same size of other type": (OLD + 3).astype(np.int32),
}


# The library locks its open files, so no other program can write those of "hdf5 chunks" meanwhile.
@pytest.mark.parametrize("change", NEW)
@pytest.mark.parametrize("name", [name for name in FORMATS if name != "hdf5 chunks"])
def test_a_file_written_anew(name: str, change: str, tmp_path: Path) -> None:
    file, write, options = FORMATS[name]
    path = tmp_path / file
    write(path, OLD)
    store = open_store(path, **options)
    write(path, NEW[change])
    if name == "raw" and NEW[change].nbytes == OLD.nbytes:
        expected = np.frombuffer(NEW[change].tobytes(), np.float32).reshape(8, 6)  # it has no header
    else:
        expected = NEW[change]
    try:
        actual = np.asarray(ENGINE.copy(store))
    except AcceleraError:
        return
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("name", [name for name in FORMATS if not name.startswith("zarr")])
def test_a_file_that_took_the_name_of_another(name: str, tmp_path: Path) -> None:
    file, write, options = FORMATS[name]
    path, other = tmp_path / file, tmp_path / f"other{Path(file).suffix}"
    write(path, OLD)
    write(other, NEW["same shape"])
    store = open_store(path, **options)
    other.replace(path)
    with pytest.raises(StoreChangedError, match="open it again"):
        ENGINE.sum(store)


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_that_did_not_change(name: str, tmp_path: Path) -> None:
    file, write, options = FORMATS[name]
    write(tmp_path / file, OLD)
    store = open_store(tmp_path / file, **options)
    for _ in range(2):
        assert ENGINE.sum(store) == OLD.sum()
