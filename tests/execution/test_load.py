"""How busy the machine is: shares from 0 to 1, read anew by age and never while somebody waits."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from accelera.execution import ProcessesExecutor, SystemLoad
from accelera.execution.hardware import load
from accelera.execution.hardware import load as load_module
from accelera.execution.hardware.load import (
    WORKER_IDS,
    NvmlLoad,
    ProcessorMeter,
    ProcessorTime,
    RefreshedValue,
    memory_pressure,
)
from accelera.memory._internal import HostMemory


def test_everything_is_a_share() -> None:
    before = time.monotonic()
    load = load_module._read()
    shares = (
        load.cpu_utilization,
        load.gpu_utilization,
        load.memory_pressure,
        load.gpu_memory_pressure,
        load.cpu_taken_by_others,
    )
    assert all(0 <= share <= 1 for share in shares)
    assert load.memory_pressure > 0
    assert before <= load.taken_at <= time.monotonic()


def test_a_load_that_is_young_is_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_module, "_CURRENT", RefreshedValue(load_module._read, age_s=600, longest_s=600))
    assert SystemLoad.current() is SystemLoad.current()


def test_the_processors_are_read_between_two_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([ProcessorTime(10, 100, 1), ProcessorTime(18, 110, 4), ProcessorTime(18, 110, 4)])
    monkeypatch.setattr(load, "_processor_time", lambda proc: next(readings))
    monkeypatch.setattr(load, "_load_average", lambda: 0.25)
    meter = ProcessorMeter()
    assert meter.read() == (0.25, 0.25)
    busy, others = meter.read()
    assert (busy, others) == (pytest.approx(0.8), pytest.approx(0.5))
    assert meter.read() == (0.25, 0.25)


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="a worker's time is read from /proc, which Linux alone has"
)
def test_worker_processes_of_ones_own_are_no_others(tmp_path: Path) -> None:
    meter = ProcessorMeter(str(tmp_path))

    def shares(busy: int, total: int, workers: list[int], spent: int) -> tuple[float, float]:
        (tmp_path / "stat").write_text(f"cpu {busy} 0 0 {total - busy} 0 0 0 0\n")
        for each in workers:
            (tmp_path / str(each)).mkdir(exist_ok=True)
            (tmp_path / str(each) / "stat").write_text(f"{each} (py (3)) R{' 0' * 10} {spent} 0 0 0\n")
        return meter.read()

    others = frozenset(WORKER_IDS)  # of executors that earlier tests left open
    with ProcessesExecutor(2) as executor:
        executor.execute_batch(range(4), abs)
        workers = sorted(WORKER_IDS - others)
        assert workers
        shares(0, 10**8, workers, 0)
        per_worker = 6 * 10**7 // len(workers)
        assert shares(8 * 10**7, 2 * 10**8, workers, per_worker) == pytest.approx((0.8, 0.2), abs=1e-3)
    assert not WORKER_IDS.intersection(workers)
    assert shares(16 * 10**7, 3 * 10**8, workers, 2 * per_worker) == pytest.approx((0.8, 0.8), abs=1e-3)


def test_a_control_group_counts_as_the_memory_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = HostMemory(total_bytes=1000, available_bytes=50, limit_bytes=200)
    monkeypatch.setattr(load, "host_memory", lambda: memory)
    assert memory_pressure() == pytest.approx(0.75)


def test_a_gpu_is_read_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_module, "nvml_load", lambda: NvmlLoad(0.6, 0.9))
    monkeypatch.setattr(load_module, "_has_gpu", lambda: True)
    load = load_module._read()
    assert (load.gpu_utilization, load.gpu_memory_pressure) == (0.6, 0.9)
    monkeypatch.setattr(load_module, "nvml_load", lambda: None)
    cuda = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, mem_get_info=lambda: (1, 4)
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    load = load_module._read()
    assert (load.gpu_utilization, load.gpu_memory_pressure) == (0.0, 0.75)


def test_an_old_value_is_given_while_a_thread_reads_the_next() -> None:
    threads: list[str] = []
    may_read = threading.Event()
    may_read.set()

    def read() -> int:
        may_read.wait()
        threads.append(threading.current_thread().name)
        return len(threads)

    value = RefreshedValue(read, age_s=0.0, longest_s=60.0)
    assert value() == 1
    may_read.clear()
    assert [value(), value()] == [1, 1]
    may_read.set()
    deadline = time.monotonic() + 20
    while value() == 1 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert value() >= 2
    assert threads[:2] == [threading.current_thread().name, "accelera-load"]


def test_a_value_is_kept_while_it_is_young_and_read_by_the_caller_when_it_is_too_old() -> None:
    reads: list[str] = []

    def read() -> int:
        reads.append(threading.current_thread().name)
        return len(reads)

    young = RefreshedValue(read, age_s=60.0, longest_s=60.0)
    assert [young(), young()] == [1, 1]
    old = RefreshedValue(read, age_s=0.0, longest_s=0.0)
    assert [old(), old()] == [2, 3]
    assert set(reads) == {threading.current_thread().name}


@pytest.mark.parametrize("text", [None, "", "cpu a b c\n", "cpu 1 2\n"])
def test_without_the_systems_counts_the_load_average_is_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    if text is not None:
        (tmp_path / "stat").write_text(text)
    monkeypatch.setattr(load, "_load_average", lambda: 0.25)
    meter = ProcessorMeter(str(tmp_path))
    assert [meter.read(), meter.read()] == [(0.25, 0.25), (0.25, 0.25)]


def test_a_gpu_that_is_broken_says_nothing_of_its_load(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> tuple[int, int]:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    cuda = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, mem_get_info=broken)
    monkeypatch.setattr(load_module, "_has_gpu", lambda: False)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert load_module._read().gpu_memory_pressure == 0.0
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    assert load_module._read().gpu_memory_pressure == 0.0, "a torch that is still being loaded"


def test_a_reading_that_fails_is_tried_again() -> None:
    reads: list[str] = []

    def read() -> int:
        reads.append(threading.current_thread().name)
        if len(reads) == 2:
            raise OSError("not now")
        return len(reads)

    value = RefreshedValue(read, age_s=0.0, longest_s=60.0)
    assert value() == 1
    deadline = time.monotonic() + 20
    while value() == 1 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert value() >= 3
    assert set(reads[1:]) == {"accelera-load"}


def test_where_no_thread_can_be_started_the_old_value_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread at interpreter shutdown")

    value = RefreshedValue(lambda: 7, age_s=0.0, longest_s=60.0)
    assert value() == 7
    monkeypatch.setattr(threading.Thread, "start", cannot)
    assert [value(), value()] == [7, 7]
