"""The flow analysis that came first: entry, thresholds, fallbacks and strategies, section by section."""

import numpy as np
import pytest
import torch

import accelera as acc
from accelera.devices import SimulatedDevice
from accelera.engine.routing import GIB, LEAST_DEVICE_BYTES, TINY_THRESHOLD_GB
from accelera.errors import StateError

RNG = np.random.default_rng(0)
A = RNG.integers(-9, 10, (2300, 40)).astype(np.float32)
B = RNG.integers(-9, 10, (40, 60)).astype(np.float32)


def product_of(engine, a=A, b=B):
    result = engine.matmul(a, b)
    np.testing.assert_array_equal(np.asarray(result), np.asarray(a) @ np.asarray(b))
    return result


# Execution flow: matrix result → convert to tensor → return to user


def test_a_result_becomes_a_tensor():
    result = product_of(acc.MemoryEfficientEngine(), acc.Matrix(A), acc.Matrix(B))
    assert isinstance(result, acc.Matrix)
    assert isinstance(result.tensor(), torch.Tensor)


# Starting point: always CPU


def test_data_starts_on_the_cpu_and_results_return_there():
    matrix = acc.Matrix(torch.ones(2, 2))
    assert matrix.storage_device == matrix.device == torch.device("cpu")
    device = SimulatedDevice("64MiB")
    assert product_of(acc.MatrixEngine(device=device)).device == torch.device("cpu")
    assert device.report().computations > 0, "computed on the device"
    assert device.allocated_bytes == 0, "and nothing is left there"


# Fallback criteria


def test_primary_fallback_check():
    assert TINY_THRESHOLD_GB == 0.05
    engine = acc.MemoryEfficientEngine(memory_threshold_gb=0.04)
    assert engine._should_use_fallback(total_memory_gb=12.0)
    assert not acc.MemoryEfficientEngine(memory_threshold_gb=0.05)._should_use_fallback(12.0)


def test_strategy_selection_cpu():
    device = SimulatedDevice("64MiB")
    product_of(acc.MemoryEfficientEngine(0.01, fallback_strategy="cpu", device=device))
    assert device.report().computations == 0


def test_strategy_selection_default_chunk():
    device = SimulatedDevice("64MiB")
    engine = acc.MemoryEfficientEngine(0.01, fallback_strategy="default_chunk", device=device)
    product_of(engine)
    assert engine.default_chunk_size == 1000
    assert device.report().computations == 3, "2300 rows in chunks of 1000, on the device"


def test_gpu_oom_ends_on_the_cpu():
    engine = acc.MatrixEngine(device=SimulatedDevice("64MiB", oom_probability=1.0))
    product_of(engine)
    assert engine.last_report.device == "cpu"
    assert engine.last_report.fallbacks


def test_insufficient_gpu_memory_means_cpu_chunks():
    assert int(0.3 * GIB) == LEAST_DEVICE_BYTES
    device = SimulatedDevice("310MiB")
    held = device.allocate(4 << 20)
    engine = acc.MatrixEngine(device=device)
    product_of(engine)
    assert engine.last_report.device == "cpu"
    device.release(held)
    product_of(engine)
    assert engine.last_report.device == device.name


# Chunking strategies


def test_row_chunking():
    chunks = list(acc.RowChunking().get_chunks((10, 4, 3), 4))
    assert chunks[0] == (slice(0, 4), slice(None), slice(None))
    assert [chunk[0].stop - chunk[0].start for chunk in chunks] == [4, 4, 2]


def test_tile_chunking_takes_rows_and_columns():
    assert acc.TileChunking(tile_size=(2, 3)).tile_size == (2, 3)
    assert len(list(acc.TileChunking(tile_size=(2, 3)).get_chunks((4, 6), 1))) == 4


def test_adaptive_chunking_is_the_default_and_its_minimum_is_one():
    engine = acc.MatrixEngine()
    assert isinstance(engine.chunking_strategy, acc.AdaptiveChunking)
    assert engine.chunking_strategy.memory_manager is engine.memory_manager
    assert engine.chunking_strategy.min_chunk_size == 1


def test_default_chunk_sizes():
    assert acc.MatrixEngine(auto_detect_memory=False).chunk_size == 1024
    assert acc.MemoryEfficientEngine().default_chunk_size == 1000


def test_default_chunking_ignores_memory_constraints_but_not_the_device():
    device = SimulatedDevice("64MiB")
    engine = acc.MemoryEfficientEngine(device=device)
    np.testing.assert_array_equal(np.asarray(engine._use_default_chunking(A, B)), A @ B)
    assert device.report().computations == 3


# Memory decision tree


@pytest.mark.parametrize(
    ("dtype", "needed_bytes"), [(np.float32, 4 * (20 + 30 + 6)), (np.float64, 8 * (20 + 30 + 6))]
)
def test_memory_calculation_knows_the_element_size(dtype, needed_bytes):
    seen = []

    engine = acc.MemoryEfficientEngine()
    engine._should_use_fallback = lambda total_memory_gb: seen.append(total_memory_gb)  # type: ignore[assignment, return-value]
    product_of(engine, A[:2, :10].astype(dtype), B[:10, :3].astype(dtype))
    assert seen == [needed_bytes / GIB]


def test_normal_processing_is_direct_when_it_fits():
    engine = acc.MemoryEfficientEngine(memory_threshold_gb=1.0)
    product_of(engine)
    with pytest.raises(StateError, match="has not run a plan"):
        _ = engine.last_report


def test_normal_processing_is_chunked_when_it_does_not():
    device = SimulatedDevice("4MiB")
    engine = acc.MatrixEngine(device=device, budget="1MiB")
    product_of(engine, A[:, :40], np.tile(B, 4))
    assert device.report().computations > 1
    assert device.report().peak_bytes <= 1 << 20


# Summary: mathematical correctness


@pytest.mark.parametrize("fallback", ["cpu", "default_chunk"])
@pytest.mark.parametrize("threshold_gb", [0.01, 0.05, 1.0])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_every_route_gives_the_same_result(fallback, threshold_gb, batch):
    a = RNG.integers(-9, 10, (*batch, 30, 20)).astype(np.float64)
    b = RNG.integers(-9, 10, (*batch, 20, 10)).astype(np.float64)
    result = product_of(acc.MemoryEfficientEngine(threshold_gb, fallback_strategy=fallback), a, b)
    assert result.dtype == torch.float64
