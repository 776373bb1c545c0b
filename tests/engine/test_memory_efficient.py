import numpy as np
import pytest
import torch

import accelera as acc
from accelera.engine.routing import GIB
from accelera.errors import BudgetExceededError, StateError, UnknownNameError
from accelera.memory_efficient_engine import MemoryEfficientEngine

RNG = np.random.default_rng(8)
A = RNG.standard_normal((2500, 20)).astype(np.float32)
B = RNG.standard_normal((20, 30)).astype(np.float32)


def test_front_doors():
    assert MemoryEfficientEngine is acc.MemoryEfficientEngine is acc.engine.MemoryEfficientEngine


@pytest.mark.parametrize(("threshold_gb", "falls_back"), [(0.049, True), (0.05, False), (1.0, False)])
def test_below_the_threshold_it_falls_back_whatever_the_operation_needs(threshold_gb, falls_back):
    engine = MemoryEfficientEngine(memory_threshold_gb=threshold_gb)
    assert engine._should_use_fallback(0.0) is engine._should_use_fallback(100.0) is falls_back


@pytest.mark.parametrize("fallback", ["cpu", "default_chunk"])
@pytest.mark.parametrize("threshold_gb", [0.01, 1.0])
@pytest.mark.parametrize(
    ("a", "b"),
    [(A, B), (A.reshape(5, 500, 20), B), (A[0], B), (A.reshape(5, 500, 20), np.stack([B] * 5))],
    ids=["matrices", "batch and matrix", "vector", "batches"],
)
def test_results_are_never_transposed_and_batches_are_kept(fallback, threshold_gb, a, b):
    engine = MemoryEfficientEngine(threshold_gb, fallback_strategy=fallback)
    result = engine.matmul(a, b)
    assert isinstance(result, acc.Matrix)
    np.testing.assert_allclose(result.numpy(), a @ b, rtol=1e-4, atol=1e-4)


def test_default_chunks_are_a_thousand_rows():
    engine = MemoryEfficientEngine(0.01, fallback_strategy="default_chunk")
    engine.matmul(A, B)
    assert engine.last_report.steps_run == 3
    np.testing.assert_allclose(engine._use_default_chunking(A, B).numpy(), A @ B, rtol=1e-4, atol=1e-4)
    other = MemoryEfficientEngine(0.01, fallback_strategy="default_chunk", default_chunk_size=500)
    other.matmul(A, B)
    assert other.last_report.steps_run == 5


def test_the_cpu_fallback_is_direct():
    engine = MemoryEfficientEngine(0.01, fallback_strategy="cpu")
    engine.matmul(A, B)
    with pytest.raises(StateError, match="has not run a plan"):
        _ = engine.last_report


def test_the_threshold_is_the_budget_otherwise():
    engine = MemoryEfficientEngine(memory_threshold_gb=0.05)
    assert engine.budget == int(0.05 * GIB)
    column, row = np.zeros((5000, 1), np.float32), np.zeros((1, 5000), np.float32)
    with pytest.raises(BudgetExceededError):
        engine.matmul(column, row)
    assert MemoryEfficientEngine(memory_threshold_gb=1).matmul(column, row).shape == (5000, 5000)


def test_operands_on_disk_fall_back_too(tmp_path):
    np.save(tmp_path / "a.npy", A)
    engine = MemoryEfficientEngine(0.01, fallback_strategy="default_chunk")
    np.testing.assert_allclose(engine.matmul(tmp_path / "a.npy", B).numpy(), A @ B, rtol=1e-4, atol=1e-4)
    assert engine.last_report.steps_run == 3


def test_float64_stays_float64():
    engine = MemoryEfficientEngine(0.01)
    assert engine.matmul(A.astype(np.float64), B.astype(np.float64)).dtype == torch.float64


def test_defaults_and_chunk_sizes():
    engine = MemoryEfficientEngine()
    assert (engine.memory_threshold_gb, engine.fallback_strategy, engine.chunk_size) == (1.0, "cpu", None)
    assert MemoryEfficientEngine(chunk_size=64).chunk_size == 64


def test_unknown_fallbacks_are_named():
    with pytest.raises(UnknownNameError, match="did you mean 'default_chunk'"):
        MemoryEfficientEngine(fallback_strategy="default_chunks")
