"""The index of an HDF5 dataset's chunks is checked before the library follows it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from accelera.errors import StoreError
from accelera.stores import open_store
from tests.fuzz.harness import CORPUS

READ = """
import sys
import numpy as np
from accelera.errors import StoreError
from accelera.stores import open_store
with open_store(sys.argv[1]) as store:
    try:
        store.read((slice(0, 3), slice(0, 4)), np.empty((3, 4), np.float32))
    except StoreError as error:
        print(error)
"""


def test_short_chunk_is_refused_before_the_library(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    path.write_bytes((CORPUS / "array_hdf5" / "regression-short-chunk").read_bytes())
    done = subprocess.run([sys.executable, "-c", READ, path], capture_output=True, text=True, check=True)
    assert "the index of /x has a chunk of 0 bytes" in done.stdout


@pytest.mark.parametrize(
    "options",
    [
        {"chunks": (7, 5)},
        {"chunks": (7, 5), "compression": "lzf", "fletcher32": True},
        {"chunks": (7, 5), "compression": "gzip", "maxshape": (None, None)},
        {"chunks": (7, 5), "scaleoffset": 2},
    ],
)
def test_sound_index_is_accepted(tmp_path: Path, options: dict[str, object]) -> None:
    values = np.arange(300.0, dtype=np.float32).reshape(20, 15)
    with h5py.File(tmp_path / "a.h5", "w", userblock_size=512) as file:
        dataset = file.create_dataset("x", shape=(20, 15), dtype="f4", **options)
        dataset[:14] = values[:14]
    result = np.empty((20, 15), np.float32)
    with open_store(tmp_path / "a.h5") as store:
        store.read((slice(0, 20), slice(0, 15)), result)
    np.testing.assert_array_equal(result[:14], values[:14])
    np.testing.assert_array_equal(result[14:], 0)


def test_chunk_beyond_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(100.0), chunks=(7,), compression="lzf")
        offset = file["x"].id.get_chunk_info(3).byte_offset
    content = path.read_bytes()
    entry = offset.to_bytes(8, "little")
    assert content.count(entry) == 1
    path.write_bytes(content.replace(entry, (1 << 40).to_bytes(8, "little")))
    with open_store(path) as store, pytest.raises(StoreError, match=r"at byte 1099511627776, expected"):
        store.read((slice(0, 7),), np.empty(7))
