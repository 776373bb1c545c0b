"""Where bytes live when they are not resident: what is written is read, mapped, and given back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelera.errors import StoreError
from accelera.offload.backing import BackingStores, FileRegion, OpenFile, RamBacking, ScratchBacking

KINDS: dict[str, Callable[[Path], BackingStores]] = {"scratch": ScratchBacking, "ram": lambda _: RamBacking()}


def content(nbytes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


@pytest.fixture(params=KINDS)
def backing(request: pytest.FixtureRequest, tmp_path: Path) -> BackingStores:
    return KINDS[request.param](tmp_path)


@pytest.mark.parametrize("nbytes", [1, 511, 4096, 100_001])
def test_what_is_written_is_read_and_mapped(backing: BackingStores, nbytes: int) -> None:
    written, home, other = content(nbytes), backing.create(nbytes), backing.create(nbytes)
    assert home.write(0, written) == nbytes
    other.write(0, content(nbytes, seed=1))
    out = np.empty(nbytes, np.uint8)
    assert home.read(0, out) == nbytes
    np.testing.assert_array_equal(out, written)
    np.testing.assert_array_equal(home.mapped(), written)
    backing.close()


@given(parts=st.lists(st.integers(1, 3000), min_size=1, max_size=6))
def test_parts_are_put_together(tmp_path_factory: pytest.TempPathFactory, parts: list[int]) -> None:
    backing = ScratchBacking(tmp_path_factory.mktemp("scratch"))
    written = content(sum(parts))
    home, out = backing.create(len(written)), np.empty_like(written)
    start = 0
    for nbytes in parts:
        home.write(start, written[start : start + nbytes])
        home.read(start, out[start : start + nbytes])
        start += nbytes
    np.testing.assert_array_equal(out, written)
    backing.close()


def test_room_is_used_again(tmp_path: Path) -> None:
    backing = ScratchBacking(tmp_path)
    first = backing.create(5000)
    first.release()
    again = backing.create(5000)
    assert (again.file, again.offset) == (first.file, first.offset)
    backing.close()


def test_scratch_files_leave_nothing_behind(tmp_path: Path) -> None:
    backing = ScratchBacking(tmp_path)
    backing.create(5000).write(0, content(5000))
    assert list(tmp_path.iterdir()) == []
    backing.close()


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"^\[offload\] no scratch file .* name another folder with store="):
        ScratchBacking(tmp_path / "missing").create(10)


@pytest.mark.parametrize("offset", [0, 8, 4096, 5001])
def test_a_region_of_a_file(tmp_path: Path, offset: int) -> None:
    written = content(20_000)
    (tmp_path / "weights").write_bytes(written.tobytes())
    home = FileRegion(OpenFile.existing(tmp_path / "weights"), offset, 9000)
    out = np.empty(9000, np.uint8)
    home.read(0, out)
    np.testing.assert_array_equal(out, written[offset : offset + 9000])
    np.testing.assert_array_equal(home.mapped(), out)
    home.mapped()[:] = 0
    home.read(0, out)
    np.testing.assert_array_equal(out, written[offset : offset + 9000])
    assert not home.writable
    with pytest.raises(StoreError, match="open for reading"):
        home.write(0, out)


def test_a_region_outside_its_file(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(bytes(100))
    with pytest.raises(StoreError, match=r"has 100 bytes; a region of 50 at byte 60 does not lie in it"):
        FileRegion(OpenFile.existing(tmp_path / "weights"), 60, 50)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file"):
        OpenFile.existing(tmp_path / "missing")
