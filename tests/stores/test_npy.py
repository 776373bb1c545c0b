""".npy files, ours and NumPy's, sound and damaged."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from accelera import MatrixEngine
from accelera.errors import DTypeError, ShapeError, StoreError, StoreFormatError
from accelera.stores import Store, open_store
from accelera.stores._internal import OutputStore, create_store, whole
from accelera.testing._internal import PublishedContract, StoreContract
from accelera.testing.store_contract import sample
from tests.stores.descriptors import open_files


class TestNpy(PublishedContract):
    def make(self, array: np.ndarray[Any, Any]) -> Store:
        path = self.folder / "array.npy"
        np.save(path, array)
        return open_store(path)

    def begin(self, shape: tuple[int, ...], dtype: str, *, resume: bool = False) -> OutputStore:
        return create_store(self.folder / "result.npy", shape, dtype, resume=resume)

    def reopen(self) -> Store:
        return open_store(self.folder / "result.npy")


class TestFortranNpy(TestNpy):
    """First axis fastest, data at an offset that is a multiple of nothing in particular."""

    def make(self, array: np.ndarray[Any, Any]) -> Store:
        path = self.folder / "array.npy"
        np.save(path, np.array(array, order="F"))
        return open_store(str(path), direct=True)

    def begin(self, shape: tuple[int, ...], dtype: str, *, resume: bool = False) -> OutputStore:
        path = str(self.folder / "result.npy")
        return create_store(path, shape, dtype, order="F", resume=resume, direct=True)


class TestSwappedNpy(StoreContract):
    """The other byte order, swapped while it is read."""

    def make(self, array: np.ndarray[Any, Any]) -> Store:
        path = self.folder / "array.npy"
        np.save(path, array.astype(array.dtype.newbyteorder(">")))
        return open_store(path, direct=False)


class TestMemmap(StoreContract):
    """Memory maps are read from their file."""

    def make(self, array: np.ndarray[Any, Any]) -> Store:
        path = self.folder / "array.npy"
        wide = np.zeros([2 * size for size in array.shape], array.dtype)
        key: Any = (..., *(slice(None, None, -2) for _ in array.shape))
        wide[key] = array
        np.save(path, wide)
        if array.size == 0:
            return open_store(path)[key]
        return open_store(np.load(path, mmap_mode="r")[key])


def written(path: Path, array: np.ndarray[Any, Any], **options: Any) -> Path:
    with create_store(path, array.shape, array.dtype, **options) as output:
        output.write(whole(array.shape), array)
        output.commit()
    return path


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(), (3,), (0, 4), (5, 6, 7)])
def test_numpy_reads_and_maps_what_is_written(tmp_path: Path, shape: tuple[int, ...], order: str) -> None:
    array = sample(shape, "complex64")
    path = written(tmp_path / "a.npy", array, order=order)
    np.testing.assert_array_equal(np.load(path), array)
    if array.size:
        mapped = np.load(path, mmap_mode="r")
        np.testing.assert_array_equal(mapped, array)
        assert mapped.offset == 4096
        assert open_store(path).layout.order == tuple(range(len(shape)))[:: 1 if order == "C" else -1]


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_header_version_is_read(tmp_path: Path, version: tuple[int, int]) -> None:
    array = sample((3, 4), "float64")
    with (tmp_path / "a.npy").open("wb") as file:
        np.lib.format.write_array(file, array, version=version)
    np.testing.assert_array_equal(open_store(tmp_path / "a.npy").to_numpy(), array)


def test_bfloat16_is_two_raw_bytes_that_must_be_named(tmp_path: Path) -> None:
    array = sample((3, 4), "bfloat16")
    path = written(tmp_path / "a.npy", array)
    assert np.load(path).view(ml_dtypes.bfloat16).tobytes() == array.tobytes()
    assert open_store(path, dtype="bfloat16").to_numpy().tobytes() == array.tobytes()
    with pytest.raises(DTypeError, match="bfloat16"):
        open_store(path)
    np.save(path, array.view(np.uint16))
    assert open_store(path, dtype="bfloat16").to_numpy().tobytes() == array.tobytes()


def test_what_is_asked_for_is_checked(tmp_path: Path) -> None:
    path = written(tmp_path / "a.npy", sample((3, 4), "float32"))
    open_store(path, shape=(3, 4), dtype="float32").close()
    with pytest.raises(ShapeError, match=r"\(4, 3\)"):
        open_store(path, shape=(4, 3))
    with pytest.raises(DTypeError, match="float64"):
        open_store(path, dtype="float64")
    with pytest.raises(StoreFormatError, match="key"):
        open_store(path, key="x")
    with pytest.raises(StoreFormatError, match="offset"):
        open_store(path, offset=128)
    with pytest.raises(StoreFormatError, match="chunk"):
        create_store(path, (3,), "float32", chunk=(1,))


def header(text: str, version: int = 1) -> bytes:
    body = text.encode()
    return b"\x93NUMPY" + bytes([version, 0]) + len(body).to_bytes(2 if version == 1 else 4, "little") + body


GOOD = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2)}"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "begins with b''"),
        (b"\x93NUMPY\x01", "version"),
        (b"PK\x03\x04 a zip archive", "begins with"),
        (header(GOOD, 9) + bytes(16), "version"),
        (header(GOOD)[:20], "the file ends after"),
        (header(GOOD), "cut off"),
        (header(GOOD) + bytes(15), "cut off"),
        (header("{'descr': '<f4', 'shape': (2, 2)}") + bytes(16), "keys"),
        (header("[1, 2]") + bytes(16), "keys"),
        (header("__import__('os').abort()") + bytes(16), "not a Python dict"),
        (header(GOOD.replace("(2, 2)", "(2, -2)")) + bytes(16), "shape"),
        (header(GOOD.replace("(2, 2)", "(2, 2.0)")) + bytes(16), "shape"),
        (header(GOOD.replace("(2, 2)", "4")) + bytes(16), "shape"),
        (header(GOOD.replace("False", "0")) + bytes(16), "fortran_order"),
        (header(GOOD.replace("<f4", "<q9")) + bytes(16), "unknown"),
        (header("{" + "(" * 5000), "not a Python dict"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(64), "at most"),
        (header(GOOD.replace("(2, 2)", "(1 << 40, 2)")) + bytes(16), "not a Python dict"),
        (header(GOOD.replace("(2, 2)", f"({1 << 40}, 2)")) + bytes(16), "cut off"),
    ],
)
def test_damaged_headers_are_refused(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(content)
    with pytest.raises(StoreFormatError, match=says.replace("(", r"\(")) as caught:
        open_store(path)
    assert "a.npy" in str(caught.value)


@pytest.mark.parametrize("descr", ["'|O'", "'<U3'", "'<M8[s]'", "'<f16'", "[('x', '<f4')]", "'|V3'"])
def test_elements_no_store_holds_are_refused(tmp_path: Path, descr: str) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(header(GOOD.replace("'<f4'", descr)) + bytes(99))
    with pytest.raises(DTypeError):
        open_store(path)


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    content = io.BytesIO()
    np.save(content, np.array([print]), allow_pickle=True)
    (tmp_path / "a.npy").write_bytes(content.getvalue())
    with pytest.raises(DTypeError, match="pickled"):
        open_store(tmp_path / "a.npy")


def test_copy_on_write_maps_are_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((3, 4)))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="c")
    mapped[1] = 5
    store = open_store(mapped)
    assert store.tier == "ram"
    assert store.to_numpy().sum() == 20


def test_writeable_maps_and_their_views_are_files(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((3, 4)))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r+")
    mapped[1] = 5
    for array in (mapped, np.asarray(mapped), mapped.T, mapped[1:]):
        store = open_store(array)
        assert store.tier == "disk"
        np.testing.assert_array_equal(store.to_numpy(), array)


def test_opening_files_leaks_no_descriptor(tmp_path: Path) -> None:
    path = written(tmp_path / "a.npy", sample((3, 4), "float32"))
    for _ in range(5):
        open_store(path).T.to_numpy()
        with pytest.raises(StoreError):
            open_store(path, shape=(9,), key="x")
        create_store(tmp_path / "b.npy", (3,), "float32").abort()
    assert open_files(tmp_path) == []


@pytest.mark.parametrize("other", ["F order", "type", "byte order", "shape"])
def test_run_over_a_rewritten_file_is_refused(tmp_path: Path, other: str) -> None:
    old = np.arange(20.0).reshape(5, 4)
    rewritten = {
        "F order": np.asfortranarray(old + 1),
        "type": np.arange(20).reshape(5, 4),
        "byte order": old.astype(">f8"),
        "shape": np.vstack([old, old]),
    }
    np.save(tmp_path / "a.npy", old)
    store = open_store(tmp_path / "a.npy")
    np.save(tmp_path / "a.npy", rewritten[other])
    with pytest.raises(StoreError, match="open it again"):
        MatrixEngine("cpu").copy(store)
    np.save(tmp_path / "a.npy", old + 7)
    out = np.empty((5, 4))
    store.read((slice(0, 5), slice(0, 4)), out)
    np.testing.assert_array_equal(out, old + 7)
