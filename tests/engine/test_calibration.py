"""Speeds are measured once, positive, and leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from accelera.devices import CpuDevice, SimulatedDevice, get_device
from accelera.devices.torch_device import TorchDevice
from accelera.engine import calibration
from accelera.engine._internal import LinkRates, cost_model, disk_rates, link_rates, memory_bytes_per_s
from accelera.errors import StoreError
from accelera.plan._internal import CostModel
from accelera.testing import FakeCuda


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


def test_the_link_to_an_accelerator_is_measured_once() -> None:
    device = TorchDevice("cpu")
    before = device.allocated_bytes
    for pinned in (False, True):
        rates = link_rates(device, pinned=pinned)
        assert rates is link_rates(device, pinned=pinned)
        assert min(rates) > 1e6
        assert rates != LinkRates(CostModel.upload_bytes_per_s, CostModel.download_bytes_per_s)
    found = cost_model(device)
    assert (found.upload_bytes_per_s, found.download_bytes_per_s) == link_rates(device)
    assert device.allocated_bytes == before
    assert not device._staging._lent


def test_predictions_follow_the_measured_link() -> None:
    slow, fast = CostModel(upload_bytes_per_s=1e9, download_bytes_per_s=2e9), CostModel()
    assert slow.read_s(10**9, 1, "ram") == pytest.approx(1.0)
    assert slow.write_s(10**9, 1, "ram") == pytest.approx(0.5)
    assert slow.read_s(10**9, 4096, "disk") == fast.read_s(10**9, 4096, "disk")


def test_choices_follow_no_measured_link() -> None:
    """They decide in which order numbers are added up, and so the last bits of a result."""
    slow, fast = (CostModel(upload_bytes_per_s=rate, download_bytes_per_s=rate) for rate in (1e9, 5e10))
    assert slow.nominal() == fast.nominal() == CostModel()


def test_what_is_stated_is_not_measured() -> None:
    simulated = SimulatedDevice("1MiB", bandwidth_bytes_per_s=7e9, flops_per_s=3e12)
    found = cost_model(simulated)
    assert (found.flops_per_s, found.upload_bytes_per_s, found.download_bytes_per_s) == (3e12, 7e9, 7e9)
    assert simulated.report().transfers == 0
    assert link_rates(CpuDevice()) == (CostModel.upload_bytes_per_s, CostModel.download_bytes_per_s)


def test_a_fast_card_is_timed_by_a_large_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 1024 cubed an H200 would be timed at handing the product over: it takes 43 microseconds."""
    edges: list[int] = []

    def fast(device: object, edge: int) -> float:
        edges.append(edge)
        return 1e-5 + 2.0 * edge**3 / 50e12

    monkeypatch.setattr(calibration, "_product_s", fast)
    calibration._measured_flops.cache_clear()
    try:
        assert calibration._measured_flops(TorchDevice("cpu")) == pytest.approx(50e12, rel=0.01)
        assert edges == [1024, 2048, 4096]
        assert calibration._measured_flops(CpuDevice()) > 0
        assert edges[3:] == [1024]
    finally:
        calibration._measured_flops.cache_clear()


def test_a_full_card_is_not_measured_and_not_for_ever() -> None:
    with FakeCuda("256MiB") as cuda:
        device = get_device("cuda")
        cuda.memories[0].taken_by_others_bytes = 255 << 20
        found, usual = cost_model(device), CostModel()
        assert (found.flops_per_s, found.upload_bytes_per_s) == (usual.flops_per_s, usual.upload_bytes_per_s)
        cuda.memories[0].taken_by_others_bytes = 0
        assert cost_model(device).flops_per_s != usual.flops_per_s
        assert np.isfinite(link_rates(device, pinned=True)).all()
