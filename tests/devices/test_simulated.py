"""The simulated accelerator: its books, its clock, its failures."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

from accelera.devices import SimulatedDevice
from accelera.errors import DeviceError, DeviceMemoryError

MIB = 1 << 20
F32 = np.dtype(np.float32)


def square(device: SimulatedDevice, edge: int = 256) -> Any:
    return device.view(device.allocate(4 * edge * edge), (edge, edge), F32, (0, 1))


def test_memory_is_counted_to_the_byte() -> None:
    device = SimulatedDevice("1MiB")
    first, second = device.allocate(MIB - 100), device.allocate(100)
    with pytest.raises(DeviceMemoryError, match=r"1 B on sim: 0 B of 1\.0 MiB are free"):
        device.allocate(1)
    device.release(first)
    assert device.available_bytes() == MIB - 100
    device.release(second)
    assert (device.allocated_bytes, device.report().peak_bytes) == (0, MIB)


def test_new_memory_holds_garbage() -> None:
    device = SimulatedDevice()
    assert np.isnan(square(device)).all()


def test_arrays_of_the_host_and_of_released_buffers_are_refused() -> None:
    device = SimulatedDevice()
    tile, host = square(device), np.zeros((256, 256), np.float32)
    with pytest.raises(DeviceError, match="gemm"):
        device.gemm(tile, host, tile, accumulate=False)
    buffer = device.allocate(4096)
    gone = device.view(buffer, (1024,), F32, (0,))
    device.release(buffer)
    with pytest.raises(DeviceError, match="upload"):
        device.upload(np.zeros(1024, np.float32), gone)


@pytest.mark.parametrize(
    ("faults", "failing"),
    [
        ({"oom_at": 2}, [2]),
        ({"oom_at": (1, 3)}, [1, 3]),
        ({"oom_above": "20KiB"}, [3, 4, 5]),
        ({"oom_probability": 1.0}, [1, 2, 3, 4, 5]),
        ({}, []),
    ],
)
def test_memory_runs_out_where_it_was_told_to(faults: dict[str, Any], failing: list[int]) -> None:
    device = SimulatedDevice(**faults)
    failed = []
    for count in range(1, 6):
        try:
            device.allocate(10 << 10)
        except DeviceMemoryError:
            failed.append(count)
    assert failed == failing


def test_the_same_seed_makes_the_same_allocations_fail() -> None:
    def failures(seed: int) -> list[bool]:
        device, failed = SimulatedDevice(oom_probability=0.5, seed=seed), []
        for _ in range(40):
            try:
                device.release(device.allocate(1))
                failed.append(False)
            except DeviceMemoryError:
                failed.append(True)
        return failed

    assert failures(1) == failures(1) != failures(2)
    assert 5 < sum(failures(1)) < 35


def test_transfers_and_products_fail_where_they_were_told_to() -> None:
    device = SimulatedDevice(fail_transfer_at=(2, 3), fail_compute_at=2)
    tile, other, host = square(device), square(device), np.zeros((256, 256), np.float32)
    device.upload(host, tile)
    with pytest.raises(DeviceError, match="transfer 2"):
        device.upload(host, tile)
    with pytest.raises(DeviceError, match="transfer 3"):
        device.download(tile, host)
    device.gemm(tile, tile, other, accumulate=False)
    with pytest.raises(DeviceError, match="computation 2"):
        device.gram(tile, other, accumulate=False)
    device.gemm(tile, tile, other, accumulate=False)


def test_the_clock_adds_up() -> None:
    device = SimulatedDevice(bandwidth_bytes_per_s=1e9, latency_s=0.5, flops_per_s=2.0 * 256**3)
    a, c, host = square(device), square(device), np.zeros((256, 256), np.float32)
    transfer_s = 0.5 + host.nbytes / 1e9
    device.upload(host, a)
    device.gemm(a, a, c, accumulate=False)
    device.download(c, host)
    report = device.report()
    assert (report.bytes_up, report.bytes_down) == (host.nbytes, host.nbytes)
    assert report.copy_s == pytest.approx(2 * transfer_s)
    assert report.compute_s == pytest.approx(1.0)
    assert report.makespan_s == pytest.approx(2 * transfer_s + 1.0), "each had to wait for the one before"
    assert report.overlap_fraction == 0


def test_independent_work_overlaps_and_dependent_work_does_not() -> None:
    device = SimulatedDevice(bandwidth_bytes_per_s=1e6, latency_s=0, flops_per_s=2.0 * 256**3)
    a, b, c, host = square(device), square(device), square(device), np.zeros((256, 256), np.float32)
    upload_s = host.nbytes / 1e6
    device.upload(host, a)
    device.gemm(a, a, c, accumulate=False)
    device.upload(host, b)
    assert device.report().makespan_s == pytest.approx(upload_s + 1)
    assert device.report().overlap_fraction == pytest.approx(upload_s / 0.5 / 2 / 1 if upload_s > 1 else 0.5)
    device.upload(host, a)
    assert device.report().makespan_s == pytest.approx(2 * upload_s + 1), "a is read until then"


def test_complex_products_take_four_times_and_gram_half() -> None:
    device = SimulatedDevice(flops_per_s=1.0)
    shape, dtype = (8, 8), np.dtype(np.complex64)
    a, c = (device.view(device.allocate(512), shape, dtype, (0, 1)) for _ in "ac")
    device.upload(np.zeros(shape, dtype), a)
    device.gemm(a, a, c, accumulate=False)
    assert device.report().compute_s == 8 * 8**3
    device.gram(a, c, accumulate=False)
    assert device.report().compute_s == 12 * 8**3


@pytest.mark.parametrize(
    "wrong",
    [
        {"bandwidth_bytes_per_s": 0},
        {"latency_s": -1},
        {"flops_per_s": 0},
        {"oom_probability": 2},
        {"capacity": "x"},
    ],
)
def test_impossible_devices_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\["):
        SimulatedDevice(**wrong)


def test_a_failed_allocation_leaves_the_books_as_they_were() -> None:
    device = SimulatedDevice("1MiB", oom_at=1)
    with contextlib.suppress(DeviceMemoryError):
        device.allocate(4096)
    assert (device.allocated_bytes, device.report().allocations) == (0, 1)
