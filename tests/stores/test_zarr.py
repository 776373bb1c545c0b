"""Zarr arrays, through the optional library."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from accelera._atomic import sync
from accelera.errors import BackendMissingError, DTypeError, ShapeError, StoreError, StoreFormatError
from accelera.stores import Store, open_store
from accelera.stores._internal import OutputStore, create_store, whole
from accelera.stores.zarr import exchange
from accelera.stores.zarrstore import ZarrStore
from accelera.testing._internal import PublishedContract
from accelera.testing.store_contract import sample

zarr = pytest.importorskip("zarr", minversion="3", reason="the extra zarr is not installed")


class TestZarr(PublishedContract):
    options: ClassVar[dict[str, Any]] = {}

    def make(self, array: np.ndarray[Any, Any]) -> Store:
        path = self.folder / "array.zarr"
        chunks = tuple(min(max(size, 1), 256 if size > 100 else 4) for size in array.shape)
        made = zarr.create_array(
            store=str(path),
            shape=array.shape,
            dtype=array.dtype,
            chunks=chunks,
            overwrite=True,
            **self.options,
        )
        made[...] = array
        return open_store(path)

    def begin(self, shape: tuple[int, ...], dtype: str, *, resume: bool = False) -> OutputStore:
        chunk = tuple(min(size, 5) for size in shape)
        return create_store(self.folder / "result.zarr", shape, dtype, chunk=chunk, resume=resume)

    def reopen(self) -> Store:
        return open_store(self.folder / "result.zarr")


class TestZarrVersionTwo(TestZarr):
    options: ClassVar[dict[str, Any]] = {"zarr_format": 2}


class TestUncompressedZarr(TestZarr):
    options: ClassVar[dict[str, Any]] = {"compressors": None, "fill_value": 3}


def test_sharded_arrays_are_read(tmp_path: Path) -> None:
    array = sample((40, 30), "float32")
    made = zarr.create_array(
        store=str(tmp_path / "a"), shape=(40, 30), dtype="float32", chunks=(5, 6), shards=(20, 12)
    )
    made[...] = array
    store = open_store(tmp_path / "a")
    assert store.layout.chunk == (5, 6)
    np.testing.assert_array_equal(store.T[::-2, 3:].to_numpy(), array.T[::-2, 3:])


def test_the_library_reads_what_is_written(tmp_path: Path) -> None:
    array = sample((40, 30), "float64")
    output = create_store(tmp_path / "a.zarr", array.shape, array.dtype)
    output.write(whole(array.shape), array)
    output.commit()
    np.testing.assert_array_equal(zarr.open_array(store=str(tmp_path / "a.zarr"), mode="r")[...], array)
    assert getattr(output, "path", None) == tmp_path / "a.zarr"


def test_chunks_that_were_never_written_are_fill_values(tmp_path: Path) -> None:
    zarr.create_array(
        store=str(tmp_path / "a.zarr"), shape=(8, 8), dtype="int32", chunks=(4, 4), fill_value=7
    )
    assert (open_store(tmp_path / "a.zarr").to_numpy() == 7).all()


def test_an_array_of_a_group_is_named(tmp_path: Path) -> None:
    group = zarr.open_group(store=str(tmp_path / "g.zarr"), mode="w")
    group.create_array("a", shape=(3,), dtype="float32")[...] = 1
    assert open_store(f"{tmp_path}/g.zarr::a").shape == (3,)
    with pytest.raises(StoreError, match="no folder"):
        open_store(tmp_path / "g.zarr", key="b")
    with pytest.raises(StoreFormatError, match="not a readable Zarr array"):
        open_store(tmp_path / "g.zarr")


def test_folders_that_are_no_arrays_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.zarr").mkdir()
    (tmp_path / "thesis.zarr" / "chapter.txt").write_text("years of work")
    with pytest.raises(StoreFormatError, match="not a Zarr array"):
        open_store(tmp_path / "thesis.zarr")
    with pytest.raises(StoreError, match="choose another name"):
        create_store(tmp_path / "thesis.zarr", (3,), "float32")
    with pytest.raises(StoreError, match="no folder"):
        open_store(tmp_path / "absent.zarr")
    assert (tmp_path / "thesis.zarr" / "chapter.txt").exists()


def test_damage_is_told(tmp_path: Path) -> None:
    made = zarr.create_array(store=str(tmp_path / "a.zarr"), shape=(8,), dtype="float32", chunks=(8,))
    made[...] = 1
    store = open_store(tmp_path / "a.zarr")
    (tmp_path / "a.zarr" / "c" / "0").write_bytes(b"noise")
    with pytest.raises(StoreError, match="damaged"):
        store.to_numpy()
    (tmp_path / "a.zarr" / "zarr.json").write_text("{")
    with pytest.raises(StoreFormatError, match="not a readable"):
        open_store(tmp_path / "a.zarr")


def test_the_fingerprint_sees_chunks_change(tmp_path: Path) -> None:
    made = zarr.create_array(store=str(tmp_path / "a.zarr"), shape=(8,), dtype="float32", chunks=(4,))
    made[...] = 1
    before = open_store(tmp_path / "a.zarr").fingerprint()
    assert open_store(tmp_path / "a.zarr").fingerprint() == before
    made[4:] = 2
    assert open_store(tmp_path / "a.zarr").fingerprint() != before


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_flush_syncs_what_was_written_since_the_last(
    tmp_path: Path, zarr_format: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    root = tmp_path / "a"

    def noted(path: Path) -> None:
        sync(path)
        synced.append(path.relative_to(root).as_posix())

    made = zarr.create_array(
        store=str(tmp_path / "a"), shape=(9, 8), dtype="f4", chunks=(3, 4), zarr_format=zarr_format
    )
    store = ZarrStore(tmp_path / "a", made, writable=True)
    monkeypatch.setattr("accelera.stores.zarrstore.sync", noted)
    store.flush()
    assert set(synced) == {".", ".zarray" if zarr_format == 2 else "zarr.json"}
    synced.clear()
    store.write((slice(2, 4), slice(1, 3)), np.ones((2, 2), "f4"))
    store.write((slice(2, 3), slice(1, 2)), np.ones((1, 1), "f4"))
    store.flush()
    third = {".", "0.0", "1.0"} if zarr_format == 2 else {".", "c", "c/0", "c/1", "c/0/0", "c/1/0"}
    assert set(synced) == third
    synced.clear()
    store.flush()
    assert synced == []


def test_a_sharded_array_is_synced_by_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = zarr.create_array(
        store=str(tmp_path / "a"), shape=(40, 30), dtype="f4", chunks=(5, 6), shards=(20, 12)
    )
    store = ZarrStore(tmp_path / "a", made, writable=True)
    store.flush()
    synced: list[Path] = []
    monkeypatch.setattr("accelera.stores.zarrstore.sync", synced.append)
    store.write(whole((40, 30)), np.ones((40, 30), "f4"))
    store.flush()
    files = {path for path in (tmp_path / "a" / "c").rglob("*") if path.is_file()}
    assert len(files) == 6
    assert files <= set(synced)


def test_what_a_disk_did_not_take_is_synced_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = create_store(tmp_path / "a.zarr", (4, 4), "f4", chunk=(2, 2))
    output.write(whole((4, 4)), np.ones((4, 4), "f4"))
    synced: set[Path] = set()

    def refused(path: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("accelera.stores.zarrstore.sync", refused)
    with pytest.raises(OSError, match="Input/output"):
        output.flush()
    monkeypatch.setattr("accelera.stores.zarrstore.sync", synced.add)
    output.flush()
    assert sum("c" in path.parts and path.name in "01" and path.is_file() for path in synced) == 4


def test_threads_write_and_flush_at_once(tmp_path: Path) -> None:
    output = create_store(tmp_path / "a.zarr", (64, 64), "f4", chunk=(4, 4))

    def writes(row: int) -> None:
        for column in range(0, 64, 4):
            region = (slice(row, row + 2), slice(column, column + 4))
            output.write(region, np.full((2, 4), row, "f4"))
            output.flush()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(writes, range(0, 64, 2)))
    output.commit()
    expected = np.repeat(np.arange(0, 64, 2, dtype="f4"), 2)[:, None] * np.ones(64, "f4")
    np.testing.assert_array_equal(open_store(tmp_path / "a.zarr").to_numpy(), expected)


def test_what_a_killed_process_had_not_finished_is_removed(tmp_path: Path) -> None:
    output = create_store(tmp_path / "a.zarr", (4, 4), "f4", chunk=(2, 2))
    output.write((slice(0, 2), slice(0, 4)), np.ones((2, 4), "f4"))
    output.close()
    unfinished = tmp_path / "a.zarr.partial" / "c" / "0" / "1.0123456789abcdef.partial"
    unfinished.write_bytes(b"half")
    again = create_store(tmp_path / "a.zarr", (4, 4), "f4", chunk=(2, 2), resume=True)
    assert not unfinished.exists()
    again.write((slice(2, 4), slice(0, 4)), np.ones((2, 4), "f4"))
    again.commit()
    np.testing.assert_array_equal(open_store(tmp_path / "a.zarr").to_numpy(), np.ones((4, 4), "f4"))


def test_what_zarr_has_no_name_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DTypeError, match="bfloat16"):
        create_store(tmp_path / "a.zarr", (3,), "bfloat16")
    with pytest.raises(StoreFormatError, match="order"):
        create_store(tmp_path / "a.zarr", (3,), "float32", order="F")
    for chunk in ((2, 2), (0,)):
        with pytest.raises(ShapeError, match="one positive size"):
            create_store(tmp_path / "a.zarr", (3,), "float32", chunk=chunk)
    with pytest.raises(StoreError, match="free"):
        create_store(tmp_path / "a.zarr", (1 << 50,), "float32")
    assert not list(tmp_path.iterdir())


def test_without_the_library_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.zarr").mkdir()
    (tmp_path / "a.zarr" / "zarr.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(BackendMissingError, match=r"accelera-engine\[zarr\]"):
        open_store(tmp_path / "a.zarr")


def test_an_older_library_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zarr, "__version__", "2.18.3")
    with pytest.raises(BackendMissingError, match=r"2\.18\.3"):
        create_store(tmp_path / "a.zarr", (3,), "float32")
    assert not list(tmp_path.iterdir())


def published(folder: Path, fill: float) -> np.ndarray[Any, Any]:
    """Publish an array of 4 x 5 as ``c.zarr``."""
    array = np.full((4, 5), fill, np.float32)
    output = create_store(folder / "c.zarr", array.shape, array.dtype)
    output.write(whole(array.shape), array)
    output.commit()
    return array


@pytest.mark.parametrize("at_once", [True, False])
def test_an_older_array_is_replaced_whatever_a_kill_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    """Also where names cannot be exchanged, and where an earlier replacement was killed while it removed."""
    if not at_once:
        monkeypatch.setattr("accelera.stores.zarr.exchange", lambda one, other: False)
    published(tmp_path, 1)
    half_removed = tmp_path / "c.zarr.replaced" / "c" / "0"
    half_removed.mkdir(parents=True)
    (half_removed / "0").write_bytes(b"rest")
    wanted = published(tmp_path, 2)
    np.testing.assert_array_equal(open_store(tmp_path / "c.zarr").to_numpy(), wanted)
    assert [each.name for each in tmp_path.iterdir()] == ["c.zarr"]


def test_an_older_array_that_was_set_aside_comes_back(tmp_path: Path) -> None:
    """Killed between two renames, where names cannot be exchanged: the next run undoes the first."""
    older = published(tmp_path, 1)
    (tmp_path / "c.zarr").rename(tmp_path / "c.zarr.replaced")
    output = create_store(tmp_path / "c.zarr", (4, 5), "float32")
    np.testing.assert_array_equal(open_store(tmp_path / "c.zarr").to_numpy(), older)
    output.abort()
    assert [each.name for each in tmp_path.iterdir()] == ["c.zarr"]


def test_two_folders_are_exchanged(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    if exchange(tmp_path / "a", tmp_path / "b"):
        assert (tmp_path / "a" / "b").exists()
        assert (tmp_path / "b" / "a").exists()
    with pytest.raises(OSError, match="No such file"):
        exchange(tmp_path / "a", tmp_path / "missing")
