"""What happens on an accelerator that is small, busy or full: on a simulated one, with real numbers."""

import logging
from typing import Any

import numpy as np
import pytest

import accelera as acc
from accelera.devices import CpuDevice, SimulatedDevice
from accelera.errors import BudgetExceededError, DeviceError, StateError
from accelera.stores import open_store
from tests.planned import matmul

RNG = np.random.default_rng(3)
A = RNG.integers(-9, 10, (600, 500)).astype(np.float32)
B = RNG.integers(-9, 10, (500, 700)).astype(np.float32)
PRODUCT = A @ B
MIB = 2**20


def engine_on(device, **options):
    return acc.MatrixEngine(device=device, enable_progress=False, **options)


def check(engine):
    np.testing.assert_array_equal(engine.matmul(A, B).numpy(), PRODUCT)
    return engine.last_report


@pytest.mark.parametrize("strategy", ["row", "tile", "adaptive"])
def test_operands_larger_than_the_device_go_through_it_in_pieces(strategy):
    device = SimulatedDevice("3MiB")
    report = check(engine_on(device, chunking_strategy=strategy))
    assert report.device == device.name
    assert report.fallbacks == ()
    assert device.report().computations > 1
    assert device.report().peak_bytes <= 0.8 * 3 * MIB, "the threshold keeps a fifth for others"
    assert device.allocated_bytes == 0


@pytest.mark.parametrize("strategy", ["row", "tile", "adaptive"])
def test_fixed_chunks_on_the_device(strategy):
    device = SimulatedDevice("3MiB")
    engine = engine_on(device, auto_detect_memory=False, chunk_size=100, chunking_strategy=strategy)
    assert check(engine).device == device.name


@pytest.mark.parametrize("strategy", ["tile", "adaptive"])
def test_running_out_of_memory_makes_the_pieces_smaller(strategy, caplog):
    engine = engine_on(SimulatedDevice("3MiB", oom_at=3), chunking_strategy=strategy)
    with caplog.at_level(logging.WARNING, "accelera"):
        report = check(engine)
    assert report.device == "sim"
    assert len(report.fallbacks) == 1
    assert "planned again in" in caplog.text


def test_rows_too_wide_for_half_the_room_are_cut_across():
    report = check(engine_on(SimulatedDevice("3MiB", oom_at=3), chunking_strategy="row"))
    assert report.device == "sim"
    assert len(report.fallbacks) == 1


def test_pressure_without_end_does_not_end_the_run():
    class Pressed:
        def under_pressure(self):
            return True

        def on_out_of_memory(self):
            """Never happens here."""

    a = np.random.default_rng(0).standard_normal((300, 200))
    device = CpuDevice()
    store, report = matmul(open_store(a), open_store(a.T), device=device, adaptation=Pressed())
    np.testing.assert_allclose(store.to_numpy(), a @ a.T)
    assert report.fallbacks == ()


def test_the_adaptive_strategy_hears_of_it():
    strategy = acc.AdaptiveChunking()
    engine = engine_on(SimulatedDevice("3MiB", oom_at=2), chunking_strategy=strategy)
    heard = []
    strategy.on_out_of_memory, hear = lambda: heard.append(1) or hear(), strategy.on_out_of_memory
    check(engine)
    assert heard == [1]


@pytest.mark.parametrize("faults", [{"oom_at": range(1, 30)}, {"oom_above": MIB}, {"oom_probability": 1.0}])
def test_a_device_that_never_has_room_leaves_it_to_the_cpu(faults):
    if "oom_at" in faults:
        faults = {"oom_at": tuple(faults["oom_at"])}
    report = check(engine_on(SimulatedDevice("3MiB", **faults)))
    assert report.device == "cpu"
    assert "CPU" in report.fallbacks[-1] or "CPU" in report.fallbacks[0]


def test_an_accelerator_with_less_than_03_gib_left_is_left_alone():
    device = SimulatedDevice("310MiB")
    engine = engine_on(device)
    held = device.allocate(4 * MIB)
    assert check(engine).device == "cpu"
    device.release(held)
    assert check(engine).device == device.name


def test_a_budget_given_is_kept_even_if_the_device_has_more():
    device = SimulatedDevice("64MiB")
    engine = engine_on(device, budget="2MiB")
    assert check(engine).device == device.name
    assert device.report().peak_bytes <= 2 * MIB
    with pytest.raises(BudgetExceededError):
        engine.matmul(A, B, budget=1000)


def test_a_broken_device_is_not_taken_for_a_full_one():
    cases: list[dict[str, Any]] = [{"fail_transfer_at": 2}, {"fail_compute_at": 1}]
    for faults in cases:
        with pytest.raises(DeviceError):
            engine_on(SimulatedDevice("3MiB", **faults)).matmul(A, B)


@pytest.mark.parametrize(
    ("fallback", "device_name", "steps"), [("cpu", None, None), ("default_chunk", "sim", 3)]
)
def test_fallbacks_below_the_threshold(fallback, device_name, steps):
    device = SimulatedDevice("64MiB")
    engine = acc.MemoryEfficientEngine(
        0.01, fallback_strategy=fallback, device=device, default_chunk_size=250
    )
    np.testing.assert_array_equal(engine.matmul(A, B).numpy(), PRODUCT)
    if device_name is None:
        with pytest.raises(StateError, match="has not run a plan"):
            _ = engine.last_report
        assert device.report().computations == 0
    else:
        assert engine.last_report.device == device_name
        assert device.report().computations == steps


def test_chunks_are_brought_to_the_device_and_given_back():
    device = SimulatedDevice("1MiB")
    manager = acc.MemoryManager(device, threshold=1.0)
    total = np.zeros((), np.float64)
    for chunk in acc.ChunkIterator(A, acc.RowChunking(), 100, manager):
        host = np.empty(chunk.shape, np.float32)
        device.download(chunk, host)
        total += host.sum()
    del chunk
    assert total == A.sum()
    assert device.allocated_bytes == 0
    assert device.report().peak_bytes < MIB
