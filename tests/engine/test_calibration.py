"""Speeds are measured once, positive, and leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from accelera.engine import disk_rates, memory_bytes_per_s
from accelera.errors import StoreError


def test_a_disk_is_measured_once_and_left_clean(tmp_path: Path) -> None:
    rates = disk_rates(tmp_path)
    assert rates.read_bytes_per_s > 0
    assert rates.write_bytes_per_s > 0
    (tmp_path / "inner").mkdir()
    assert disk_rates(tmp_path / "inner") is rates
    assert [each.name for each in tmp_path.iterdir()] == ["inner"]


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="name another folder"):
        disk_rates(tmp_path / "nowhere")


def test_memory_has_a_rate() -> None:
    assert memory_bytes_per_s() == memory_bytes_per_s() > 0
