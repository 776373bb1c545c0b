""".safetensors files: the library reads ours, we read the library's, and nothing in a header is trusted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from accelera.errors import DTypeError, StoreError, StoreFormatError, UnknownNameError
from accelera.stores import Store, open_store
from accelera.stores._internal import OutputStore, create_store, whole
from accelera.testing._internal import PublishedContract
from accelera.testing.store_contract import sample


class TestSafetensors(PublishedContract):
    dtypes = (*PublishedContract.dtypes, "bfloat16", "uint64")

    def make(self, array: np.ndarray[Any, Any]) -> Store:
        path = self.folder / "array.safetensors"
        save_file({"before": np.zeros(3, np.uint8), "array": array}, path)
        return open_store(path, key="array")

    def begin(self, shape: tuple[int, ...], dtype: str, *, resume: bool = False) -> OutputStore:
        return create_store(f"{self.folder}/result.safetensors::x", shape, dtype, resume=resume)

    def reopen(self) -> Store:
        return open_store(self.folder / "result.safetensors")


@pytest.mark.parametrize("dtype", ["bool", "bfloat16", "float32", "int64", "complex64"])
def test_the_library_reads_what_is_written(tmp_path: Path, dtype: str) -> None:
    array = sample((5, 6), dtype)
    output = create_store(tmp_path / "a.safetensors::weights", array.shape, dtype)
    output.write(whole(array.shape), array)
    output.commit()
    assert load_file(tmp_path / "a.safetensors")["weights"].tobytes() == array.tobytes()
    length = int.from_bytes((tmp_path / "a.safetensors").read_bytes()[:8], "little")
    assert (8 + length) % 4096 == 0


def test_a_tensor_is_named_or_the_only_one(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"one": np.ones(3)}, path)
    assert open_store(path).shape == (3,)
    save_file({"one": np.ones(3), "two": np.ones(4)}, path)
    assert open_store(f"{path}::two").shape == (4,)
    with pytest.raises(StoreFormatError, match="one, two"):
        open_store(path)
    with pytest.raises(UnknownNameError, match="did you mean 'two'"):
        open_store(path, key="twoo")
    with pytest.raises(StoreFormatError, match="give one of them"):
        open_store(f"{path}::two", key="one")
    save_file({}, path)
    with pytest.raises(StoreFormatError, match="0 tensors"):
        open_store(path)


def test_a_result_does_not_replace_other_tensors(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"one": np.ones(3), "two": np.ones(4)}, path)
    with pytest.raises(StoreError, match=r"other tensors \(two\)"):
        create_store(f"{path}::one", (3,), "float64")
    assert sorted(load_file(path)) == ["one", "two"]
    save_file({"one": np.ones(3)}, path)
    with create_store(f"{path}::one", (3,), "float64") as output:
        output.abort()


def test_what_the_format_has_no_name_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DTypeError, match="complex128"):
        create_store(tmp_path / "a.safetensors", (2,), "complex128")
    with pytest.raises(StoreFormatError, match="C order"):
        create_store(tmp_path / "a.safetensors", (2, 2), "float32", order="F")
    assert not list(tmp_path.iterdir())


def entry(begin: int, end: int, *, dtype: str = "F32", shape: Any = None) -> dict[str, Any]:
    return {
        "dtype": dtype,
        "shape": [(end - begin) // 4] if shape is None else shape,
        "data_offsets": [begin, end],
    }


def content(fields: Any, data: int = 16, length: int | None = None) -> bytes:
    text = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + bytes(data)


@pytest.mark.parametrize(
    ("damaged", "says"),
    [
        (b"", "0 bytes"),
        (b"\x01\x02", "2 bytes"),
        (content({"a": entry(0, 16)}, length=1 << 40), "claims"),
        (content({"a": entry(0, 16)}, length=2000), "claims"),
        (content(b"{]"), "not JSON"),
        (content(b"\xff\xfe{}"), "not JSON"),
        (content(b'{"a": 1, "a": 1}'), "twice"),
        (content([1, 2]), "list"),
        (content({"a": 7}), "'a'"),
        (content({"a": entry(0, 16, shape=[5])}), "'a'"),
        (content({"a": entry(0, 16, shape=[-4])}), "'a'"),
        (content({"a": entry(0, 16, shape=[True, 4])}), "'a'"),
        (content({"a": entry(0, 16, shape="4")}), "'a'"),
        (content({"a": {"dtype": "F32", "shape": [4]}}), "'a'"),
        (content({"a": {"dtype": "F32", "shape": [4], "data_offsets": [16, 0]}}), "'a'"),
        (content({"a": {"dtype": 3, "shape": [4], "data_offsets": [0, 16]}}), "'a'"),
        (content({"a": entry(0, 16), "b": entry(8, 16)}), "overlaps"),
        (content({"a": entry(0, 8), "b": entry(12, 16)}), "hole"),
        (content({"a": entry(4, 16)}), "hole"),
        (content({"a": entry(0, 64)}), "cut off"),
        (content({"a": entry(0, 12)}), "tail"),
        (content({"a": entry(0, 1 << 62)}), "cut off"),
    ],
)
def test_damaged_headers_are_refused(tmp_path: Path, damaged: bytes, says: str) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(damaged)
    with pytest.raises(StoreFormatError, match=says):
        open_store(path, key="a")


def test_eight_bit_floats_are_refused_and_hide_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(content({"a": entry(0, 8, dtype="F8_E4M3", shape=[8]), "b": entry(8, 16)}))
    with pytest.raises(DTypeError, match="F8_E4M3"):
        open_store(path, key="a")
    assert open_store(path, key="b").to_numpy().tolist() == [0, 0]


def test_metadata_is_no_tensor(tmp_path: Path) -> None:
    save_file({"a": np.ones(3)}, tmp_path / "a.safetensors", metadata={"format": "np"})
    assert open_store(tmp_path / "a.safetensors").shape == (3,)
    with pytest.raises(StoreError):
        open_store(tmp_path / "b.safetensors")
