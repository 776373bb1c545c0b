"""Chunks that would decode to more than their shape takes are refused before the memory is allocated."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import math
import resource
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numcodecs
import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

from accelera import StoreError, open_store

INFLATED_BYTES = 192 << 20
GROWTH_BYTES = 48 << 20
COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda data: gzip.compress(data, 1),
    "zlib": lambda data: zlib.compress(data, 1),
    "bz2": lambda data: bz2.compress(data, 1),
    "lzma": lambda data: lzma.compress(data, preset=0),
    "zstd": lambda data: numcodecs.Zstd(1).encode(data),
    "lz4": lambda data: numcodecs.LZ4().encode(data),
    "blosc": lambda data: numcodecs.Blosc().encode(np.frombuffer(data, np.float32)),
}


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def assert_refused_cheaply(path: Path) -> None:
    with open_store(path) as store:
        out = np.empty(store.shape, np.float32)
        before = peak_bytes()
        with pytest.raises(StoreError):
            store.read(tuple(slice(0, size, 1) for size in store.shape), out)
        assert peak_bytes() - before < GROWTH_BYTES


@pytest.fixture(scope="module")
def bombs() -> dict[str, bytes]:
    """Streams of zeros that decode to 192 MiB."""
    zeros = bytes(INFLATED_BYTES)
    return {name: compress(zeros) for name, compress in COMPRESSORS.items()}


@pytest.mark.parametrize("name", COMPRESSORS)
def test_zarr_2_chunk_that_inflates_is_refused(tmp_path: Path, bombs: dict[str, bytes], name: str) -> None:
    codec = numcodecs.get_codec({"id": name})
    path = tmp_path / "a.zarr"
    array = zarr.create_array(
        str(path), shape=(64, 64), chunks=(64, 64), dtype="f4", zarr_format=2, compressors=codec
    )
    array[:] = 1
    (path / "0.0").write_bytes(bombs[name])
    assert_refused_cheaply(path)


@pytest.mark.parametrize("name", ["gzip", "zstd", "blosc"])
def test_zarr_3_chunk_that_inflates_is_refused(tmp_path: Path, bombs: dict[str, bytes], name: str) -> None:
    codec = {"gzip": GzipCodec(), "zstd": ZstdCodec(), "blosc": BloscCodec()}[name]
    path = tmp_path / "a.zarr"
    array = zarr.create_array(str(path), shape=(64, 64), chunks=(64, 64), dtype="f4", compressors=codec)
    array[:] = 1
    (path / "c" / "0" / "0").write_bytes(bombs[name])
    assert_refused_cheaply(path)


def test_zarr_shard_that_inflates_is_refused(tmp_path: Path, bombs: dict[str, bytes]) -> None:
    path = tmp_path / "a.zarr"
    array = zarr.create_array(
        str(path), shape=(64, 64), chunks=(64, 64), shards=(64, 64), dtype="f4", compressors=GzipCodec()
    )
    array[:] = 1
    chunk = bombs["gzip"]
    index = np.array([0, len(chunk)], "<u8").tobytes()
    checksum = numcodecs.CRC32C(location="end").encode(index)
    (path / "c" / "0" / "0").write_bytes(chunk + bytes(checksum))
    assert_refused_cheaply(path)


def test_zarr_chunk_file_of_implausible_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    zarr.create_array(str(path), shape=(64, 64), chunks=(64, 64), dtype="f4", compressors=None)[:] = 1
    with open(path / "c" / "0" / "0", "wb") as file:
        file.truncate(INFLATED_BYTES)
    assert_refused_cheaply(path)


def test_zstd_frame_without_a_size_is_bounded_by_blocks(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    zarr.create_array(str(path), shape=(64, 64), chunks=(64, 64), dtype="f4", compressors=ZstdCodec())[:] = 1
    run_length_block = (128 << 10) << 3 | 1 << 1
    blocks = [run_length_block.to_bytes(3, "little") + b"\0"] * (INFLATED_BYTES >> 17)
    blocks[-1] = (run_length_block | 1).to_bytes(3, "little") + b"\0"
    (path / "c" / "0" / "0").write_bytes(b"\x28\xb5\x2f\xfd\x00\x58" + b"".join(blocks))
    assert_refused_cheaply(path)


@pytest.mark.parametrize("shuffle", [False, True])
def test_hdf5_chunk_that_inflates_is_refused(tmp_path: Path, bombs: dict[str, bytes], shuffle: bool) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        data = file.create_dataset("x", (64, 64), "f4", chunks=(64, 64), compression=1, shuffle=shuffle)
        data[:] = 1
        data.id.write_direct_chunk((0, 0), bombs["zlib"])
    assert_refused_cheaply(path)


CODECS: list[Any] = [None, GzipCodec(), ZstdCodec(), BloscCodec()]


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: type(codec).__name__)
@pytest.mark.parametrize("shards", [None, (30, 40)])
@pytest.mark.parametrize("dtype", ["f4", "i8", "u1", "c16"])
def test_zarr_chunks_decode_as_before(tmp_path: Path, codec: Any, shards: Any, dtype: str) -> None:
    rows = np.random.default_rng(0).integers(0, 99, (47, 61)).astype(dtype)
    array = zarr.create_array(
        str(tmp_path / "a.zarr"),
        shape=rows.shape,
        dtype=dtype,
        chunks=(15, 20),
        shards=shards,
        compressors=codec,
    )
    array[:] = rows
    np.testing.assert_array_equal(open_store(tmp_path / "a.zarr").to_numpy(), rows)
    np.testing.assert_array_equal(open_store(array).to_numpy(), rows)


@pytest.mark.parametrize("filters", [[numcodecs.Delta("f4")], [numcodecs.Shuffle(4)], None], ids=str)
@pytest.mark.parametrize("name", [*COMPRESSORS])
def test_zarr_2_chunks_decode_as_before(tmp_path: Path, filters: Any, name: str) -> None:
    rows = np.arange(47 * 61, dtype="f4").reshape(47, 61)
    array = zarr.create_array(
        str(tmp_path / "a.zarr"), shape=rows.shape, dtype="f4", chunks=(15, 20), zarr_format=2,
        compressors=numcodecs.get_codec({"id": name}), filters=filters,
    )  # fmt: skip
    array[:] = rows
    np.testing.assert_array_equal(open_store(tmp_path / "a.zarr").to_numpy(), rows)


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"fletcher32": True}], ids=str)
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<i2", "<f8"])
def test_hdf5_chunks_decode_as_before(tmp_path: Path, options: dict[str, bool], dtype: str) -> None:
    rows = np.random.default_rng(1).integers(-99, 99, (47, 61)).astype(dtype)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=rows, chunks=(15, 20), compression=4, **options)
        file.create_dataset("holes", rows.shape, dtype, chunks=(15, 20), compression=4, fillvalue=3)
    np.testing.assert_array_equal(open_store(f"{tmp_path}/a.h5::x").to_numpy(), rows)
    view = open_store(f"{tmp_path}/a.h5::x")[5:40:3, 60:10:-2]
    np.testing.assert_array_equal(view.to_numpy(), rows[5:40:3, 60:10:-2])
    assert (open_store(f"{tmp_path}/a.h5::holes").to_numpy() == 3).all()


def test_zarr_fingerprint_covers_only_chunks_of_a_view(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    zarr.create_array(str(path), shape=(64, 64), chunks=(8, 8), dtype="f4")[:] = 1
    corner, whole = open_store(path)[:8, 4:12], open_store(path)
    before = corner.fingerprint(), whole.fingerprint()
    (path / "c" / "7" / "7").unlink()
    assert corner.fingerprint() == before[0]
    assert whole.fingerprint() != before[1]
    chunk = path / "c" / "0" / "1"
    chunk.write_bytes(chunk.read_bytes())
    assert corner.fingerprint() != before[0]


def test_zarr_metadata_of_a_bounded_array_is_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    array = zarr.create_array(str(path), shape=(8, 8), chunks=(8, 8), dtype="f4", compressors=GzipCodec())
    metadata = json.loads((path / "zarr.json").read_text())
    with open_store(array) as store:
        store.write((slice(0, 8, 1), slice(0, 8, 1)), np.ones((8, 8), "f4"))
    assert json.loads((path / "zarr.json").read_text()) == metadata
    assert math.isclose(float(zarr.open_array(str(path))[:].sum()), 64)
