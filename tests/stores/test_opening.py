"""From a name to a store: missing files, folders, devices, other formats, files that shrink."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from accelera.errors import DTypeError, StoreError, StoreFormatError, UnknownNameError
from accelera.stores import open_store, register_format
from accelera.stores._internal import ArrayStore, Source, known_suffixes, whole
from accelera.stores.formats import _MODULES


def test_a_missing_file_is_named_with_its_neighbours(tmp_path: Path) -> None:
    np.save(tmp_path / "weights.npy", np.ones(3))
    np.save(tmp_path / "b.npy", np.ones(3))
    with pytest.raises(StoreError, match=r"no file .*weight\.npy; did you mean weights\.npy"):
        open_store(tmp_path / "weight.npy")
    with pytest.raises(StoreError, match="nor one of a similar name"):
        open_store(tmp_path / "a.npy")
    with pytest.raises(StoreError, match="nor one of a similar name"):
        open_store(tmp_path / "zzz.bin", shape=(1,), dtype="int8")
    with pytest.raises(StoreError, match=r"folder .*absent does not exist"):
        open_store(tmp_path / "absent" / "a.npy")
    with pytest.raises(StoreFormatError, match="folder"):
        open_store(tmp_path)


def test_an_unknown_suffix_lists_the_known_ones(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,2")
    with pytest.raises(UnknownNameError, match=r"\.npy, \.raw, \.safetensors, \.zarr"):
        open_store(tmp_path / "a.csv")
    assert ".npy" in known_suffixes()


def test_pipes_and_devices_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.npy")
    with pytest.raises(StoreError, match="not a regular file"):
        open_store(tmp_path / "a.npy")


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    np.save(tmp_path / "a.npy", np.ones(3))
    assert open_store("~/a.npy").shape == (3,)


@pytest.mark.parametrize("direct", [True, False, None])
def test_a_file_cut_off_while_open_is_a_short_read(tmp_path: Path, direct: bool | None) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.ones((400, 400)))
    store = open_store(path, direct=direct)
    os.truncate(path, 100_000)
    with pytest.raises(StoreError, match=r"at byte \d+: \d+ of \d+ bytes moved: short read"):
        store.read(whole((400, 400)), np.empty((400, 400)))
    with pytest.raises(StoreError, match="short read"):
        store.T[5:9].to_numpy()


def test_the_fingerprint_follows_the_contents_not_the_path(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.ones((4, 4)))
    before = open_store(path).fingerprint()
    path.rename(tmp_path / "b.npy")
    assert open_store(tmp_path / "b.npy").fingerprint() == before
    os.utime(tmp_path / "b.npy", ns=(1, 1))
    assert open_store(tmp_path / "b.npy").fingerprint() != before


def test_an_input_is_not_written(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones(3))
    with pytest.raises(StoreError, match="open for reading"):
        open_store(tmp_path / "a.npy").write(whole((3,)), np.zeros(3))


def test_one_line_adds_a_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("mine")
    module.open_path = lambda source: ArrayStore(np.loadtxt(source.path, delimiter=","))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mine", module)
    monkeypatch.setattr("accelera.stores.formats._MODULES", dict(_MODULES))
    register_format(".csv", "mine")
    (tmp_path / "a.csv").write_text("1,2\n3,4\n")
    assert open_store(tmp_path / "a.csv").to_numpy().tolist() == [[1, 2], [3, 4]]


def test_the_direct_wish_can_change(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(9000.0))
    store = open_store(tmp_path / "a.npy")
    for direct in (True, False, None, True):
        store.T.use_direct(direct)
        assert (store.to_numpy() == np.arange(9000)).all()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.use_direct(True)
    ArrayStore(np.ones(3)).use_direct(True)


def test_a_source_refuses_what_it_has_no_use_for() -> None:
    with pytest.raises(StoreFormatError, match="offset=4"):
        Source(Path("a.npy"), offset=4).refuse("key", "offset")
    with pytest.raises(DTypeError, match="quad"):
        open_store("a.bin", shape=(3,), dtype="quad")


@pytest.mark.parametrize(
    ("missing", "present"), [("q.npy", "Q.npy"), ("LEFT.npy", "left.npy"), ("b.NPY", "B.npy")]
)
def test_missing_file_suggests_the_other_case(tmp_path: Path, missing: str, present: str) -> None:
    np.save(tmp_path / present, np.ones(3))
    with pytest.raises(StoreError, match=present):
        open_store(tmp_path / missing)


@pytest.mark.parametrize("name", ["shot::2.npy", "a::b::c.npy", "x.h5::y.npy"])
def test_existing_path_with_colons_is_that_file(tmp_path: Path, name: str) -> None:
    np.save(tmp_path / name, np.arange(3.0))
    np.testing.assert_array_equal(open_store(tmp_path / name).to_numpy(), np.arange(3.0))
