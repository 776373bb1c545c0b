"""Headerless files: what they hold is said, and must fit to the byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accelera.errors import DTypeError, ShapeError, StoreError, StoreFormatError
from accelera.stores import Store, open_store
from accelera.stores._internal import OutputStore, create_store, whole
from accelera.testing._internal import PublishedContract
from accelera.testing.store_contract import sample


class TestRaw(PublishedContract):
    dtypes = (*PublishedContract.dtypes, "bfloat16", "complex128")

    def make(self, array: np.ndarray[Any, Any]) -> Store:
        path = self.folder / "array.bin"
        path.write_bytes(b"seven b" + array.tobytes())
        return open_store(path, shape=array.shape, dtype=array.dtype, offset=7)

    def begin(self, shape: tuple[int, ...], dtype: str, *, resume: bool = False) -> OutputStore:
        self.shape, self.dtype = shape, dtype
        return create_store(self.folder / "result.raw", shape, dtype, resume=resume)

    def reopen(self) -> Store:
        return open_store(self.folder / "result.raw", shape=self.shape, dtype=self.dtype)

    def test_only_the_same_result_is_resumed(self) -> None:
        """Without a header only the size can tell; it does."""
        self.begin((4, 5), "float32").abort(keep_partial=True)
        with pytest.raises(StoreError, match="was begun for"):
            self.begin((4, 6), "float32", resume=True)


@pytest.mark.parametrize("suffix", [".bin", ".raw", ".dat", ".DAT"])
def test_the_bytes_and_nothing_else_are_written(tmp_path: Path, suffix: str) -> None:
    array = sample((3, 5), "float32")
    output = create_store(tmp_path / f"a{suffix}", (3, 5), "float32", order="F")
    output.T.write((slice(0, 5), slice(0, 3)), array.T)
    output.commit()
    assert (tmp_path / f"a{suffix}").read_bytes() == array.tobytes("F")


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(48))
    for known in ({}, {"shape": (3, 4)}, {"dtype": "float32"}):
        with pytest.raises(StoreFormatError, match="no header"):
            open_store(path, **known)
    for shape, offset in (((3, 5), 0), ((3, 3), 0), ((3, 4), 4), ((1 << 30, 1 << 30), 0)):
        with pytest.raises(StoreFormatError, match="48 bytes"):
            open_store(path, shape=shape, dtype="float32", offset=offset)
    with pytest.raises(ShapeError, match=r"2\*\*63"):
        open_store(path, shape=(1 << 40, 1 << 40), dtype="float32")
    with pytest.raises(StoreFormatError, match="negative"):
        open_store(path, shape=(3, 4), dtype="float32", offset=-4)
    with pytest.raises(DTypeError, match="int4"):
        open_store(path, shape=(96,), dtype="int4")
    assert open_store(path, shape=(3, 3), dtype="float32", offset=12).shape == (3, 3)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.uint16, np.int32, np.uint64])
def test_shape_and_offset_of_any_integer_type(tmp_path: Path, kind: type[np.integer[Any]]) -> None:
    values = np.arange(120 * 100 + 25, dtype=np.float32)
    values.tofile(tmp_path / "frames.raw")
    store = open_store(tmp_path / "frames.raw", shape=(kind(120), kind(100)), dtype="f4", offset=kind(100))
    out = np.empty((120, 100), np.float32)
    store.read(whole(store.shape), out)
    np.testing.assert_array_equal(out, values[25:].reshape(120, 100))
