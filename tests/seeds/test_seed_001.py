"""The user's guide that came first, walked through from its first sentence to its last.

Each test is one section; code stands as it stands there, with sizes brought down where they would
take long and the few things asserted that the text promises.
"""

import inspect
import logging
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import accelera as acc

ROOT = Path(__file__).parents[2]


@pytest.fixture
def engine():
    return acc.MatrixEngine()


@pytest.fixture
def A():  # noqa: N802
    return acc.Matrix.randn((200, 150))


@pytest.fixture
def B():  # noqa: N802
    return acc.Matrix.randn((150, 250))


def close(result, expected):
    np.testing.assert_allclose(np.asarray(result), np.asarray(expected), rtol=1e-4, atol=1e-3)


# Installation


def test_install_from_source():
    makefile = (ROOT / "Makefile").read_text()
    assert "\ninstall:" in makefile
    assert "\ninstall-bin:" in makefile
    assert 'build-backend = "scikit_build_core.build"' in (ROOT / "pyproject.toml").read_text()


def test_verify_installation(capsys, caplog):
    # Check CUDA availability
    print(f"CUDA available: {torch.cuda.is_available()}")

    # Initialize engine (will show GPU info)
    with caplog.at_level(logging.INFO):
        engine = acc.MatrixEngine()

    assert "CUDA available: " in capsys.readouterr().out
    assert engine.device.name in caplog.text
    assert "GiB" in caplog.text


# Quick Start


def test_basic_matrix_multiplication(capsys):
    # Initialize engine with automatic memory detection
    engine = acc.MatrixEngine(auto_detect_memory=True)

    # Create large matrices
    A = acc.Matrix.randn((800, 600))
    B = acc.Matrix.randn((600, 1000))

    # Perform multiplication (automatically chunks if needed)
    C = engine.matmul(A, B)

    print(f"Result shape: {C.shape}")
    assert capsys.readouterr().out == "Result shape: (800, 1000)\n"
    close(C, A.numpy() @ B.numpy())


def test_elementwise_operations(engine):
    # Element-wise operations
    X = acc.Matrix.randn((500, 400))
    Y = acc.Matrix.randn((500, 400))

    # Addition
    Z1 = engine.add(X, Y)

    # Element-wise multiplication
    Z2 = engine.multiply(X, Y)

    close(Z1, X.numpy() + Y.numpy())
    close(Z2, X.numpy() * Y.numpy())


def test_working_with_different_input_types(engine):
    # NumPy arrays
    A_np = np.random.randn(1000, 800).astype(np.float32)
    B_np = np.random.randn(800, 1200).astype(np.float32)
    C = engine.matmul(A_np, B_np)
    close(C, A_np @ B_np)

    # PyTorch tensors
    A_torch = torch.randn(1000, 800)
    B_torch = torch.randn(800, 1200)
    C = engine.matmul(A_torch, B_torch)
    close(C, A_torch @ B_torch)


# Core Concepts


def test_memory_manager(engine):
    manager = engine.memory_manager
    assert isinstance(manager, acc.MemoryManager)
    assert 0 < manager.get_available_memory() <= manager.get_total_memory()
    tensor = torch.ones(3)
    assert manager.move_to_gpu(tensor).device.type == torch.device(engine.device.name).type
    assert manager.get_optimal_chunk_size((1000, 500), (500, 800)) == 1000
    manager.cleanup()


def test_row_chunking(A, B):
    from accelera.chunking import RowChunking

    strategy = RowChunking()
    engine = acc.MatrixEngine(chunking_strategy="row")

    assert isinstance(engine.chunking_strategy, RowChunking)
    close(engine.matmul(A, B, chunk_strategy=strategy), A.numpy() @ B.numpy())


def test_adaptive_chunking(A, B):
    engine = acc.MatrixEngine(chunking_strategy="adaptive")

    assert isinstance(engine.chunking_strategy, acc.AdaptiveChunking)
    close(engine.matmul(A, B), A.numpy() @ B.numpy())


def test_tile_chunking():
    from accelera.chunking import TileChunking

    strategy = TileChunking(tile_size=(1024, 1024))

    shapes = [
        tuple(part.stop - part.start for part in chunk) for chunk in strategy.get_chunks((1500, 2048), 1)
    ]
    assert shapes == [(1024, 1024), (1024, 1024), (476, 1024), (476, 1024)]


def test_matrix_wrapper(capsys):
    # Create matrices
    A = acc.Matrix.zeros((1000, 500))  # Zero matrix
    B = acc.Matrix.ones((500, 800))  # Ones matrix
    C = acc.Matrix.eye(1000)  # Identity matrix
    D = acc.Matrix.randn((1000, 500))  # Random normal
    assert C.numpy().trace() == 1000
    assert abs(D.mean()) < 0.1

    # Matrix operations (the text adds a 1000 x 500 and a 500 x 800 matrix: A stands in for B here)
    E = A + D  # Addition
    F = A * D  # Element-wise multiplication
    G = A @ B  # Matrix multiplication (use engine for large matrices)
    close(E, D)
    assert not F.numpy().any()
    assert G.shape == (1000, 800)

    # Properties
    print(f"Shape: {A.shape}")
    print(f"Device: {A.device}")
    print(f"Memory: {A.memory_size() / 1e6:.1f} MB")
    assert capsys.readouterr().out == "Shape: (1000, 500)\nDevice: cpu\nMemory: 2.0 MB\n"


def test_the_text_adds_matrices_that_do_not_fit():
    with pytest.raises(acc.ShapeError, match=r"\(1000, 500\) and B of shape \(500, 800\) do not broadcast"):
        acc.Matrix.zeros((1000, 500)) + acc.Matrix.ones((500, 800))


# API Reference


def test_matrix_engine_constructor():
    parameters = inspect.signature(acc.MatrixEngine).parameters
    assert {name: parameters[name].default for name in list(parameters)[:5]} == {
        "device": None,
        "auto_detect_memory": True,
        "chunking_strategy": "adaptive",
        "chunk_size": None,
        "enable_progress": True,
    }
    engine = acc.MatrixEngine(None, False, "tile", 64, False)
    assert (engine.auto_detect_memory, engine.chunk_size, engine.enable_progress) == (False, 64, False)
    assert acc.MatrixEngine(chunk_size=64).chunk_size is None, "ignored if auto_detect_memory=True"


@pytest.mark.parametrize("strategy", ["row", "tile", "adaptive"])
def test_matmul_with_another_strategy(engine, A, B, strategy):
    close(engine.matmul(A, B, chunk_strategy=strategy), A.numpy() @ B.numpy())


def test_get_memory_info_and_cleanup(engine):
    assert {"gpu_utilization", "gpu_available_gb", "cpu_available_gb"} <= set(engine.get_memory_info())
    assert engine.cleanup() is None


@pytest.mark.parametrize("data", [torch.ones(2, 3), np.ones((2, 3)), [[1.0] * 3] * 2])
def test_matrix_constructor(data):
    matrix = acc.Matrix(data, device="cpu", dtype=torch.float64)
    assert matrix.dtype == torch.float64
    assert acc.Matrix(data).device.type == "cpu"


@pytest.mark.parametrize("name", ["zeros", "ones", "random", "randn"])
def test_matrix_static_methods(name):
    make = getattr(acc.Matrix, name)
    defaults = {key: each.default for key, each in inspect.signature(make).parameters.items()}
    assert (defaults["dtype"], defaults["device"]) == (torch.float32, "cpu")
    assert make((3, 4), dtype=torch.float64, device="cpu").dtype == torch.float64


def test_matrix_eye():
    assert acc.Matrix.eye(3, m=None, dtype=torch.float32, device="cpu").shape == (3, 3)
    assert acc.Matrix.eye(3, 5).shape == (3, 5)


def test_matrix_properties_and_methods(A):
    assert A.shape == (200, 150)
    assert A.dtype == torch.float32
    assert A.device == A.storage_device == torch.device("cpu")
    assert isinstance(A.tensor(), torch.Tensor)
    assert isinstance(A.numpy(), np.ndarray)
    copy = A.clone()
    copy[0, 0] = 99
    assert A.numpy()[0, 0] != 99
    assert A.to_gpu().to_cpu() is A
    assert A.device.type == "cpu"


# Advanced Usage


def test_custom_chunking_strategy(A, B):
    from accelera.chunking import ChunkingStrategy

    class CustomChunking(ChunkingStrategy):
        def get_chunks(self, shape, chunk_size):
            # Implement custom chunking logic
            pass

    # Use custom strategy
    engine = acc.MatrixEngine()
    engine.chunking_strategy = CustomChunking()

    with pytest.raises(acc.ShapeError, match="get_chunks returned None"):
        engine.matmul(A, B)


def test_custom_chunking_strategy_with_logic(A, B):
    class Bands(acc.ChunkingStrategy):
        def get_chunks(self, shape, chunk_size):
            return [(slice(0, 7), slice(None)), (slice(7, shape[0]), slice(None))]

    engine = acc.MatrixEngine()
    engine.chunking_strategy = Bands()
    close(engine.matmul(A, B), A.numpy() @ B.numpy())
    assert engine.last_report.steps_run == 2


def test_manual_memory_management():
    # Disable automatic memory detection
    engine = acc.MatrixEngine(auto_detect_memory=False)

    # Set manual chunk size
    engine.set_chunk_size(512)
    assert engine.chunk_size == 512

    # Re-enable automatic detection
    engine.enable_auto_memory_detection(True)
    assert engine.chunk_size is None


def test_set_chunk_size_turns_automatic_detection_off(engine):
    engine.set_chunk_size(512)
    assert not engine.auto_detect_memory


def test_memory_monitoring(engine, capsys):
    # Get detailed memory info
    memory_info = engine.get_memory_info()

    print(f"GPU utilization: {memory_info['gpu_utilization']:.1f}%")
    print(f"GPU available: {memory_info['gpu_available_gb']:.2f} GB")
    print(f"CPU available: {memory_info['cpu_available_gb']:.2f} GB")
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_batch_processing(engine):
    # Process multiple matrix pairs efficiently
    matrices_A = [acc.Matrix.randn((100, 80)) for _ in range(10)]
    matrices_B = [acc.Matrix.randn((80, 120)) for _ in range(10)]

    results = []
    for A, B in zip(matrices_A, matrices_B, strict=True):
        C = engine.matmul(A, B)
        results.append(C)

        # Optional: cleanup between operations
        engine.cleanup()

    for A, B, C in zip(matrices_A, matrices_B, results, strict=True):
        close(C, A.numpy() @ B.numpy())


# Performance Guidelines


def test_memory_optimization(engine, A, B, capsys):
    # Monitor memory usage
    def monitor_operation():
        before = engine.get_memory_info()
        result = engine.matmul(A, B)
        after = engine.get_memory_info()

        print(f"Memory change: {after['gpu_utilization'] - before['gpu_utilization']:.1f}%")
        return result

    close(monitor_operation(), A.numpy() @ B.numpy())
    assert capsys.readouterr().out.startswith("Memory change: ")

    # Force cleanup after operations
    engine.cleanup()

    # Use smaller chunk sizes for memory-constrained environments
    engine.set_chunk_size(256)
    assert engine.chunk_size == 256


def test_performance_tuning(A):
    # Disable progress bars for batch processing
    engine = acc.MatrixEngine(enable_progress=False)

    # Use row chunking for better performance
    engine = acc.MatrixEngine(chunking_strategy="row")

    tensor, strategy, chunk_size, memory_manager = A, engine.chunking_strategy, 64, engine.memory_manager

    # Prefetch chunks for better throughput
    from accelera.chunking import ChunkIterator

    iterator = ChunkIterator(tensor, strategy, chunk_size, memory_manager, prefetch=True)

    close(np.concatenate([np.asarray(chunk.cpu()) for chunk in iterator]), A)


# Troubleshooting


def test_cuda_out_of_memory(engine, A, B, capsys):
    engine.set_chunk_size(128)  # Smaller chunks
    close(engine.matmul(A, B), A.numpy() @ B.numpy())

    engine.cleanup()  # Force cleanup

    print(engine.get_memory_info())
    assert "gpu_total_gb" in capsys.readouterr().out


def test_slow_performance(engine, A, B, capsys):
    # Monitor if direct computation is possible
    memory_needed = A.memory_size() + B.memory_size()
    available = engine.memory_manager.get_available_memory()
    print(f"Direct computation possible: {memory_needed < available}")
    assert capsys.readouterr().out == "Direct computation possible: True\n"


def test_dimension_mismatch(engine, A, B):
    # For matmul: A.shape[-1] must equal B.shape[-2]
    assert A.shape[-1] == B.shape[-2], f"Incompatible shapes: {A.shape} @ {B.shape}"
    with pytest.raises(acc.ShapeError, match=r"\(200, 150\) and \(250, 150\)"):
        engine.matmul(A, B.T)


def run_python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


def test_enable_debug_logging():
    ran = run_python(
        """
        import accelera as acc
        A, B = acc.Matrix.randn((20, 10)), acc.Matrix.randn((10, 5))

        import logging
        logging.basicConfig(level=logging.DEBUG)

        # Run operations with debug info
        engine = acc.MatrixEngine()
        result = engine.matmul(A, B)
        """
    )
    assert ran.returncode == 0, ran.stderr
    assert "INFO:accelera:MatrixEngine computes on" in ran.stderr
    assert "DEBUG:accelera:matmul" in ran.stderr
    assert ran.stderr.count("MatrixEngine computes on") == 1


def test_memory_debugging(engine, A, B, capsys):
    def debug_memory():
        info = engine.get_memory_info()
        for key, value in info.items():
            print(f"{key}: {value}")

    debug_memory()  # Before operation
    result = engine.matmul(A, B)
    debug_memory()  # After operation
    assert capsys.readouterr().out.count("gpu_utilization: ") == 2
    close(result, A.numpy() @ B.numpy())


def test_environment_variables():
    ran = run_python(
        """
        import accelera as acc
        from accelera.settings import current

        engine = acc.MatrixEngine()
        print(current())
        manager = engine.memory_manager
        print(manager.threshold, manager.get_optimal_chunk_size((9999, 1), (1, 1)))
        """,
        ACCELERA_MEMORY_THRESHOLD="0.8",
        ACCELERA_MIN_CHUNK_SIZE="1",
        ACCELERA_MAX_CHUNK_SIZE="5000",
        ACCELERA_ENABLE_PREFETCH="true",
        ACCELERA_LOG_LEVEL="DEBUG",
    )
    assert ran.returncode == 0, ran.stderr
    assert "memory_threshold=0.8" in ran.stdout
    assert ran.stdout.endswith("0.8 5000\n")
    assert "computes on" in ran.stderr, "the level lets the engine's own message through"


def test_performance_benchmarking(engine, capsys):
    def benchmark_operation(A, B, num_runs=3):
        times = []

        for i in range(num_runs):
            engine.cleanup()  # Clean start

            start = time.time()
            result = engine.matmul(A, B)
            end = time.time()

            times.append(end - start)
            print(f"Run {i + 1}: {times[-1]:.2f}s")

        avg_time = sum(times) / len(times)
        print(f"Average: {avg_time:.2f}s")

        return result, avg_time

    # Benchmark your operations
    A = acc.Matrix.randn((2000, 1500))
    B = acc.Matrix.randn((1500, 2500))
    result, avg_time = benchmark_operation(A, B)

    assert result.shape == (2000, 2500)
    assert isinstance(avg_time, float)
    assert capsys.readouterr().out.count("Run") == 3
