"""Readers of array files: an array that opens has the stated shape, and its elements can be read."""

from __future__ import annotations

import contextlib
import functools
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from accelera.errors import AcceleraError
from accelera.stores import open_store
from accelera.stores._internal import create_store
from accelera.stores.opening import split_key
from accelera.stores.safetensors import tensor_names
from tests.fuzz.harness import (
    RESOURCES,
    fuzz_target,
    is_small,
    parts_of,
    temporary_file,
    temporary_folder,
    text_of,
)

MOST_CHUNKS = 500
"""Each chunk takes a fraction of a millisecond, whatever its size."""
MOST_RAW_BYTES = 4096


def _open_and_read(path: Path | str, **options: Any) -> None:
    with open_store(path, **options) as store:
        chunk = store.layout.chunk or store.shape
        chunks = math.prod(-(-size // max(part, 1)) for size, part in zip(store.shape, chunk, strict=True))
        if is_small(store.shape, store.dtype.itemsize) and chunks <= MOST_CHUNKS:
            array = np.empty(store.shape, store.dtype)
            store.read(tuple(slice(0, size) for size in store.shape), array)


@fuzz_target(examples=200)
def array_npy(data: bytes) -> None:
    with temporary_file(data, "a.npy") as path:
        _open_and_read(path)


@fuzz_target(examples=200)
def array_safetensors(data: bytes) -> None:
    with temporary_file(data, "a.safetensors") as path:
        for name in tensor_names(path):
            _open_and_read(path, key=name)


@fuzz_target(examples=60)
def array_hdf5(data: bytes) -> None:
    with temporary_file(data, "a.h5") as path:
        _open_and_read(path)


@fuzz_target(examples=60)
def array_zarr_v3(data: bytes) -> None:
    metadata, chunk = parts_of(data, 2)
    files = {"a.zarr/zarr.json": metadata, "a.zarr/c/0/0": chunk, "a.zarr/c/1/0": chunk, "a.zarr/c/0": chunk}
    with temporary_folder(_without_conflicts(files)) as folder:
        _open_and_read(folder / "a.zarr")


@fuzz_target(examples=60)
def array_zarr_v2(data: bytes) -> None:
    metadata, chunk = parts_of(data, 2)
    files = {"a.zarr/.zarray": metadata, "a.zarr/0.0": chunk, "a.zarr/1.0": chunk, "a.zarr/0": chunk}
    with temporary_folder(files) as folder:
        _open_and_read(folder / "a.zarr")


def _without_conflicts(files: dict[str, bytes]) -> dict[str, bytes]:
    """Leave out files whose names are folders of others."""
    return {name: data for name, data in files.items() if not any(o.startswith(f"{name}/") for o in files)}


@fuzz_target(examples=40)
def array_zarr_group(data: bytes) -> None:
    """Write a result into a group: its metadata, consolidated or not, are read and written again."""
    third, second = parts_of(data, 2)
    files = {"g/zarr.json": third} if third else {"g/.zgroup": b'{"zarr_format": 2}', "g/.zmetadata": second}
    with temporary_folder(files) as folder:
        output = create_store(folder / "g/a.zarr", (2, 3), "float32")
        output.write((slice(0, 2), slice(0, 3)), np.ones((2, 3), np.float32))
        output.commit()
        _open_and_read(folder / "g/a.zarr")


@fuzz_target(examples=150)
def array_raw(data: bytes) -> None:
    """Read a raw file of some size by a description: shape, element type and offset."""
    shape, dtype, offset, size = (text_of(part) for part in parts_of(data, 4))
    sizes = [_number(word) for word in shape.split("x")]
    with temporary_file(bytes(_number(size) % MOST_RAW_BYTES), "a.bin") as path:
        _open_and_read(path, shape=sizes, dtype=dtype, offset=_number(offset))


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return 0


@functools.cache
def _files_with_members() -> Path:
    """Return a folder of files that hold several arrays, and of a Zarr group."""
    import h5py
    import zarr

    folder = Path(RESOURCES.enter_context(tempfile.TemporaryDirectory(prefix="accelera-fuzz-")))
    RESOURCES.callback(_files_with_members.cache_clear)
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("group/x", data=np.zeros(3))
    safetensors.numpy.save_file({"x": np.zeros(3), "y.z": np.ones(2)}, folder / "a.safetensors")
    zarr.open_group(folder / "a.zarr", mode="w").create_array("x", shape=(2,), dtype="float32")
    return folder


@fuzz_target(examples=100)
def array_key(data: bytes) -> None:
    """The name of one array in a file that holds several."""
    for name in ("a.h5", "a.safetensors", "a.zarr"):
        with contextlib.suppress(AcceleraError):
            _open_and_read(_files_with_members() / name, key=text_of(data))


@fuzz_target(examples=150)
def array_path(data: bytes) -> None:
    """Open what a user types as the name of an array; no such file exists."""
    split_key(text_of(data), None)
    with temporary_folder({}) as folder:
        _open_and_read(f"{folder}/{text_of(data)}")
