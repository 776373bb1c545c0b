"""Products by a plan on a simulated accelerator: inside its memory, overlapped, whole or not at all."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accelera.devices import SimulatedDevice
from accelera.engine import RunObserver, RunReport
from accelera.engine.matmul import PlannedMatmul
from accelera.errors import BudgetExceededError, DeviceError
from accelera.plan import Plan
from accelera.stores import open_store
from accelera.trace import Kind
from tests.planned import matmul

RNG = np.random.default_rng(7)
A = RNG.standard_normal((700, 800)).astype(np.float32)
B = RNG.standard_normal((800, 600)).astype(np.float32)
EXACT = A.astype(np.float64) @ B
BOUND = 1e-5 * np.abs(A) @ np.abs(B)


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str, str]:
    np.save(tmp_path / "A.npy", A)
    np.save(tmp_path / "B.npy", B)
    return str(tmp_path / "A.npy"), str(tmp_path / "B.npy"), str(tmp_path / "C.npy")


def run(files: tuple[str, str, str], device: SimulatedDevice, **options: Any) -> RunReport:
    """Multiply the files and check the result."""
    _, report = matmul(open_store(files[0]), open_store(files[1]), files[2], device=device, **options)
    assert (np.abs(np.load(files[2]) - EXACT) <= BOUND).all()
    assert device.allocated_bytes == 0
    return report


class Patient(RunObserver):
    """Lets a product on ``device`` begin only when what the next one needs was sent there."""

    def __init__(self, device: SimulatedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
        self._device, self._upload, self._gemm = device, device.upload, device.gemm
        self._sent = threading.Condition()
        self._needed_bytes: list[int] = []
        self._products = 0
        monkeypatch.setattr(device, "upload", self.upload)
        monkeypatch.setattr(device, "gemm", self.gemm)

    def on_start(self, plan: Plan) -> None:
        trace, here, needed = plan.trace(), set(), [0] * plan.forecast.steps
        for buffer, kind, step in zip(trace.buffer, trace.kind, trace.step, strict=True):
            if kind in (Kind.EVICT, Kind.FREE):
                here.discard(buffer)
            elif kind in (Kind.READ, Kind.WRITE):
                needed[step] += int(trace.size_bytes[buffer]) * (kind == Kind.READ and buffer not in here)
                here.add(buffer)
        assert sum(needed) == sum(plan.forecast.bytes_read.values())
        self._needed_bytes = list(itertools.accumulate(needed))

    def upload(self, host: Any, target: Any) -> None:
        self._upload(host, target)
        with self._sent:
            self._sent.notify_all()

    def gemm(self, *operands: Any, **how: Any) -> None:
        self._products += 1
        needed = self._needed_bytes[min(self._products, len(self._needed_bytes) - 1)]
        with self._sent:
            assert self._sent.wait_for(lambda: self._device.report().bytes_up >= needed, 300)
        self._gemm(*operands, **how)


def test_operands_larger_than_the_device(files: tuple[str, str, str]) -> None:
    device = SimulatedDevice("4MiB")
    report = run(files, device)
    done = device.report()
    assert report.device == "sim"
    assert report.fallbacks == ()
    assert done.computations == report.steps_run > 1
    assert done.peak_bytes == report.peak_pool_bytes <= 4 << 20
    assert done.bytes_up == sum(report.plan.forecast.bytes_read.values())
    assert done.bytes_down == report.plan.forecast.bytes_written == EXACT.size * 4


def test_transfers_hide_behind_products(files: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    device = SimulatedDevice("4MiB", bandwidth_bytes_per_s=1e9, flops_per_s=1e11)
    run(files, device, observers=[Patient(device, monkeypatch)])
    done = device.report()
    assert done.overlap_fraction > 0.3
    assert done.makespan_s < done.copy_s + done.compute_s


def test_without_prefetch_less_is_hidden(
    files: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead, behind = (SimulatedDevice("4MiB", bandwidth_bytes_per_s=1e9, flops_per_s=1e11) for _ in "ab")
    run(files, ahead, prefetch=True, observers=[Patient(ahead, monkeypatch)])
    run(files, behind, prefetch=False, readers=1)
    assert behind.report().overlap_fraction < ahead.report().overlap_fraction


def test_out_of_memory_once_continues_in_half_the_room(files: tuple[str, str, str]) -> None:
    device = SimulatedDevice("4MiB", oom_at=2)
    report = run(files, device)
    assert report.device == "sim"
    assert len(report.fallbacks) == 1
    assert "planned again in" in report.fallbacks[0]
    assert report.plan.forecast.peak_pool_bytes <= 2 << 20


def test_out_of_memory_halfway_keeps_what_is_stored(files: tuple[str, str, str]) -> None:
    device = SimulatedDevice("4MiB", oom_above="3MiB")
    report = run(files, device)
    assert report.device == "sim"
    assert report.peak_pool_bytes <= 3 << 20
    assert report.fallbacks


def test_a_device_that_is_always_full_leaves_it_to_the_cpu(files: tuple[str, str, str]) -> None:
    device = SimulatedDevice("8MiB", oom_probability=1.0)
    report = run(files, device)
    assert report.device == "cpu"
    assert "planned again in" in report.fallbacks[0]
    assert report.fallbacks[-1].startswith("continued on the CPU")
    assert device.report().bytes_up == 0


@pytest.mark.parametrize("faults", [{"fail_transfer_at": 5}, {"fail_compute_at": 2}, {"fail_transfer_at": 1}])
def test_other_failures_leave_no_result(files: tuple[str, str, str], faults: dict[str, int]) -> None:
    device = SimulatedDevice("4MiB", **faults)  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match="told to fail"):
        run(files, device)
    assert not Path(files[2]).exists()
    assert device.allocated_bytes == 0


def test_a_failed_download_leaves_no_result_and_can_be_resumed(files: tuple[str, str, str]) -> None:
    """Tiles stored before the failure are not computed again."""
    first = SimulatedDevice("4MiB")
    steps = run(files, first).steps_run
    Path(files[2]).unlink()
    with pytest.raises(DeviceError):
        run(files, SimulatedDevice("4MiB", fail_transfer_at=first.report().transfers))
    assert not Path(files[2]).exists()
    report = run(files, SimulatedDevice("4MiB"), resume=True)
    assert report.steps_skipped + report.steps_run == steps
    assert report.steps_skipped > 0


def test_a_device_too_small_for_any_plan_is_refused_before_anything_moves(
    files: tuple[str, str, str],
) -> None:
    device = SimulatedDevice("8B")
    with pytest.raises(BudgetExceededError):
        run(files, device)
    assert device.report().allocations == 0
    assert not Path(files[2]).exists()


def test_half_types_are_summed_in_float32(tmp_path: Path) -> None:
    a, b = A.astype(np.float16), B.astype(np.float16)
    np.save(tmp_path / "a.npy", a)
    device = SimulatedDevice("2MiB")
    out = np.empty(EXACT.shape, np.float16)
    matmul(open_store(str(tmp_path / "a.npy")), open_store(b), out, device=device)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert (np.abs(out - exact) <= np.abs(exact) * 2**-10 + BOUND).all()
    assert device.report().bytes_down == out.nbytes


def test_the_plan_reckons_with_the_stated_rate(files: tuple[str, str, str]) -> None:
    slow, fast = (SimulatedDevice("4MiB", flops_per_s=rate) for rate in (1e6, 1e12))
    plans = [
        PlannedMatmul(open_store(files[0]), open_store(files[1])).plan(device) for device in (slow, fast)
    ]
    assert plans[0].forecast.seconds > 100 > plans[1].forecast.seconds
    assert slow.report().computations == 0, "it is read, not measured"


def test_a_torch_device_runs_the_same_plans(files: tuple[str, str, str]) -> None:
    from accelera.devices.torch_device import TorchDevice

    device = TorchDevice("cpu")
    _, report = matmul(
        open_store(files[0]), open_store(files[1]), files[2], device=device, budget_bytes=4 << 20
    )
    assert (np.abs(np.load(files[2]) - EXACT) <= BOUND).all()
    assert report.device == device.name
    assert report.steps_run > 1
    assert device.allocated_bytes == 0
