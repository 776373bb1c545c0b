"""Results in files: how long they live, what can be done with them, what is said when there is no place."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import tempfile
from pathlib import Path

import pytest
import torch

import accelera
from accelera.errors import BudgetExceededError, StoreError
from accelera.interceptor import spill as spilling
from accelera.interceptor.config import active_config
from accelera.interceptor.spill import SpilledResult, empty
from accelera.interceptor.tiling import ResultLayout
from accelera.stores._internal import is_in_memory
from tests.interceptor.forcing import counted, forced
from tests.stores.descriptors import open_files

CPU = torch.device("cpu")


def test_a_file_has_no_name_and_ends_with_its_tensor(tmp_path: Path) -> None:
    x = torch.arange(5000.0)
    before = accelera.stats().spilled_now_bytes
    with accelera.intercepted(10_000, 0, 0, spill_dir=tmp_path), counted() as seen:
        doubled = x + x
        part = doubled[10:]
    assert list(tmp_path.iterdir()) == []
    assert seen[0].by_op["add.Tensor"].spilled_bytes == 20_000
    assert accelera.stats().spilled_now_bytes == before + 20_000
    del doubled
    gc.collect()
    assert accelera.stats().spilled_now_bytes == before + 20_000
    assert part[0] == 20
    del part
    gc.collect()
    assert accelera.stats().spilled_now_bytes == before


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    x = torch.arange(5000.0)
    with accelera.intercepted(10_000, 0, 0, spill_dir=tmp_path):
        kept = [x + number for number in range(3)]
        # Each mapping keeps a descriptor of its own; what was written through is closed.
        assert len(open_files(tmp_path)) == 3
        del kept
    gc.collect()
    assert open_files(tmp_path) == []


def test_it_is_an_ordinary_tensor() -> None:
    with forced("spilled"):
        spilled = torch.arange(12.0).reshape(3, 4) + 1
    expected = torch.arange(1.0, 13.0).reshape(3, 4)
    assert torch.equal(pickle.loads(pickle.dumps(spilled)), expected)
    assert torch.equal(copy.deepcopy(spilled), expected)
    spilled.add_(1)
    spilled[0, 0] = 7
    assert spilled.sum() == expected.sum() + 12 + 5
    assert spilled.numpy()[0, 0] == 7
    assert torch.equal(spilled.T.contiguous(), spilled.T)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.bfloat16, torch.float8_e4m3fn, torch.complex128, torch.int16]
)
def test_every_element_type_and_layout(dtype: torch.dtype, tmp_path: Path) -> None:
    values = torch.randint(0, 2, (3, 5, 4)).to(dtype)
    spill = SpilledResult("test", tmp_path, ResultLayout((3, 5, 4), (4, 12, 1), dtype))
    for row in range(3):
        spill.target.put((slice(row, row + 1), slice(0, 5), slice(0, 4)), values[row : row + 1])
    spill.close()
    found = spill.tensor()
    assert found.stride() == (4, 12, 1)
    assert torch.equal(
        found.view(torch.uint8) if dtype.itemsize == 1 else found,
        values.view(torch.uint8) if dtype.itemsize == 1 else values,
    )


class TestNoPlace:
    def test_a_temporary_folder_in_memory_asks_for_another(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.delenv("ACCELERA_SPILL", raising=False)
        monkeypatch.setattr(tempfile, "tempdir", "/dev/shm")
        monkeypatch.setattr(spilling, "is_in_memory", lambda folder: folder == Path("/dev/shm"))
        x = torch.ones(5000)
        with (
            accelera.intercepted(10_000, 0, 0),
            pytest.raises(
                StoreError, match=r"\[add.Tensor\].*/dev/shm lies in memory.*name a folder.*ACCELERA_SPILL"
            ),
        ):
            x + x
        monkeypatch.setenv("ACCELERA_SPILL", str(tmp_path))
        with accelera.intercepted(10_000, 0, 0):
            assert torch.equal(x + x, torch.full((5000,), 2.0))

    def test_memory_filesystems_are_known(self) -> None:
        if not Path("/dev/shm").is_mount():
            pytest.skip("no /dev/shm here")
        assert is_in_memory(Path("/dev/shm"))
        assert is_in_memory(Path("/dev/shm/not/there/yet"))
        assert not is_in_memory(Path("/proc"))

    def test_a_folder_that_goes_missing(self, tmp_path: Path) -> None:
        folder, x = tmp_path / "missing", torch.ones(5000)
        folder.mkdir()
        with accelera.intercepted(10_000, 0, 0, spill_dir=folder):
            folder.rmdir()
            with pytest.raises(StoreError, match=r"missing: No such file.*name a folder on a disk"):
                x + x

    def test_a_full_disk(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(descriptor: int, offset: int, length: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "posix_fallocate", full)
        x = torch.ones(5000)
        with (
            accelera.intercepted(10_000, 0, 0, spill_dir=tmp_path),
            pytest.raises(StoreError, match=r"19.5 KiB cannot be put into .* are free: No space left"),
        ):
            x + x


class TestAllowance:
    def test_nothing_in_force(self) -> None:
        assert active_config() is None
        assert empty("test", (2, 3), torch.float32, CPU).shape == (2, 3)

    def test_within_a_budget(self) -> None:
        with accelera.intercepted(10_000, 0, 0), counted() as seen:
            config = active_config()
            assert config is not None
            assert config.limit(CPU).budget_bytes() == 10_000
            assert config.limit(CPU).allows(10_000)
            assert not config.limit(CPU).allows(10_001)
            small = empty("test", (10, 10), torch.float32, CPU)
            large = empty("test", (10, 10), torch.float32, CPU, kept_bytes=9_700)
        assert small.stride() == large.stride() == (10, 1)
        assert seen[0].by_op["test"].spilled_bytes == 400
        assert torch.equal(large, torch.zeros(10, 10))

    def test_refused(self) -> None:
        with accelera.intercepted(10_000, 0, 0, spill_dir=False), pytest.raises(BudgetExceededError) as error:
            empty("test", (100, 100), torch.float32, CPU, kept_bytes=5)
        assert (error.value.needed_bytes, error.value.budget_bytes) == (40_005, 10_000)
