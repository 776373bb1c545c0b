"""The strategy executor's integration guide, walked through from its first example to its last.

Rust stands as Python: ``Arc::new(x)`` is ``x``, ``Result`` an exception, a closure a function.
"""

import concurrent.futures
import logging
import threading
from collections import Counter
from typing import Any

import pytest

from accelera import (
    CpuExecutor,
    ExecutionResult,
    ExecutionStrategy,
    GpuExecutor,
    HardwareCapabilities,
    StrategyManager,
    SystemLoad,
    WorkloadProfile,
)
from accelera.execution import SimulatedExecutor

EIGHT_GIB = 8 * 1024 * 1024 * 1024
WITH_GPU = HardwareCapabilities(cpu_cores=16, gpu_available=True, gpu_memory_bytes=EIGHT_GIB)


class MyCpuBridge:
    """``rayon``'s pool is the standard library's."""

    def __init__(self, num_threads=4):
        self.thread_pool = concurrent.futures.ThreadPoolExecutor(num_threads)
        self.batches = []

    def execute_batch(self, tasks, process_fn):
        self.batches.append(len(tasks))
        return list(self.thread_pool.map(process_fn, tasks))


class MyGpuBridge:
    """Executes on the device ``device_id``, or fails as it is told."""

    def __init__(self, device_id=0, error=None):
        self.device_id, self.error = device_id, error
        self.batches, self.threads = [], set()

    def execute_batch(self, tasks, process_fn):
        self.threads.add(threading.current_thread())
        if self.error is not None:
            raise RuntimeError(self.error)
        self.batches.append(len(tasks))
        return [process_fn(task) for task in tasks]

    def is_available(self):
        return True

    def memory_available(self):
        return EIGHT_GIB


@pytest.fixture
def cpu_bridge():
    bridge = MyCpuBridge()
    yield bridge
    bridge.thread_pool.shutdown()


def process_task(task):
    return task * task


def squares(count):
    return [process_task(task) for task in range(count)]


# Core Features


def test_auto_selection_logic(cpu_bridge):
    manager = StrategyManager.cpu_only(cpu_bridge)
    assert manager.execute([1, 2, 3], lambda task: process_task(task)).outputs == [1, 4, 9]

    gpu_bridge = MyGpuBridge()
    manager = StrategyManager.new(cpu_bridge, gpu_bridge)
    tasks = [1, 2, 3]
    result = manager.execute(tasks, lambda task: process_task(task))
    assert isinstance(result, ExecutionResult)
    assert result.outputs == [1, 4, 9]
    assert result.strategy_used == ExecutionStrategy.CpuOnly


@pytest.mark.parametrize(
    "error", ["CUDA out of memory", "CUDA driver error: unknown error", "CUDA error: device unavailable"]
)
def test_graceful_fallback_pattern(cpu_bridge, caplog, error):
    strategy = ExecutionStrategy.GpuOnly
    manager = StrategyManager.with_strategy(cpu_bridge, MyGpuBridge(error=error), strategy)
    result = manager.execute(range(20), process_task)
    assert result.outputs == squares(20)
    assert result.fallback_occurred
    assert f"GPU execution failed: {error}, falling back to CPU" in caplog.text


def test_a_gpu_that_is_unavailable_is_a_fallback_trigger(cpu_bridge):
    gpu_bridge = MyGpuBridge()
    gpu_bridge.is_available = lambda: False
    result = StrategyManager.new(cpu_bridge, gpu_bridge).execute(range(100), process_task)
    assert result.outputs == squares(100)
    assert gpu_bridge.batches == []


def test_memory_pressure_is_a_fallback_trigger():
    profile = WorkloadProfile(100, parallelization=0.9)
    pressure = SystemLoad(gpu_memory_pressure=0.81)
    said = StrategyManager.select_strategy(profile, WITH_GPU, pressure)
    assert said == ExecutionStrategy.Hybrid(gpu_allocation=60, cpu_allocation=40)


def test_hybrid_execution(cpu_bridge):
    gpu_bridge = MyGpuBridge()
    strategy = ExecutionStrategy.Hybrid(
        gpu_allocation=70,  # 70% of tasks to GPU
        cpu_allocation=30,  # 30% of tasks to CPU
    )
    manager = StrategyManager.with_strategy(cpu_bridge, gpu_bridge, strategy)
    result = manager.execute(range(100), process_task)
    assert result.outputs == squares(100), "combined in task order"
    assert (sum(gpu_bridge.batches), sum(cpu_bridge.batches)) == (70, 30)
    assert threading.current_thread() not in gpu_bridge.threads, "in parallel threads"


def test_hybrid_execution_falls_back(cpu_bridge):
    strategy = ExecutionStrategy.Hybrid(gpu_allocation=70, cpu_allocation=30)
    gpu_bridge = MyGpuBridge(error="CUDA out of memory")
    result = StrategyManager.with_strategy(cpu_bridge, gpu_bridge, strategy).execute(range(50), process_task)
    assert (result.outputs, result.fallback_occurred) == (squares(50), True)


# Strategy Selection Decision Tree


@pytest.mark.parametrize(
    ("available", "count", "pressure", "parallel", "expected"),
    [
        (False, 1000, 0.0, 1.0, ExecutionStrategy.CpuOnly),
        (True, 9, 0.0, 1.0, ExecutionStrategy.CpuOnly),
        (True, 10, 0.81, 1.0, ExecutionStrategy.Hybrid(60, 40)),
        (True, 50, 0.80, 0.71, ExecutionStrategy.GpuOnly),
        (True, 49, 0.80, 0.71, ExecutionStrategy.Hybrid(70, 30)),
        (True, 50, 0.80, 0.70, ExecutionStrategy.Hybrid(70, 30)),
    ],
)
def test_decision_tree(available, count, pressure, parallel, expected):
    hardware = HardwareCapabilities(cpu_cores=16, gpu_available=available)
    profile = WorkloadProfile(count, parallelization=parallel)
    load = SystemLoad(gpu_memory_pressure=pressure)
    assert StrategyManager.select_strategy(profile, hardware, load) == expected


# Implementation Requirements


def test_the_bridges_are_executors(cpu_bridge):
    assert isinstance(cpu_bridge, CpuExecutor)
    assert isinstance(MyGpuBridge(device_id=0), GpuExecutor)
    assert cpu_bridge.execute_batch(range(9), process_task) == squares(9)


# Performance Metrics


def test_performance_metrics(cpu_bridge, capsys):
    result = StrategyManager.cpu_only(cpu_bridge).execute(range(5), process_task)

    print(f"Strategy used: {result.strategy_used}")
    print(f"Execution time: {result.execution_time}")
    print(f"Fallback occurred: {result.fallback_occurred}")
    print(f"Errors: {result.errors}")

    told = capsys.readouterr().out
    assert "Strategy used: CpuOnly\n" in told
    assert "Fallback occurred: False\nErrors: ()\n" in told
    assert result.execution_time > 0


# Error Recovery Strategies


def test_gpu_out_of_memory(cpu_bridge):
    """Smaller micro-batches first; the CPU does what does not fit alone."""
    gpu_bridge = SimulatedExecutor("1KiB", memory_per_task=lambda task: 2048 if task == 7 else 16)
    manager = StrategyManager.with_strategy(cpu_bridge, gpu_bridge, ExecutionStrategy.GpuOnly)
    result = manager.execute(range(100), process_task)
    assert result.outputs == squares(100)
    assert result.fallback_occurred
    assert any("out of memory" in str(error) for error in result.errors)
    assert result.per_device["cpu"].tasks == 1


def test_driver_issues(cpu_bridge):
    manager = StrategyManager.with_strategy(
        cpu_bridge, MyGpuBridge(error="CUDA driver error"), ExecutionStrategy.GpuOnly
    )
    result = manager.execute(range(10), process_task)
    assert result.outputs == squares(10)
    assert result.fallback_occurred is True
    assert "CUDA driver error" in {str(error) for error in result.errors}


def test_hybrid_partial_failure(cpu_bridge, caplog):
    """The entire workload falls back to the CPU where ``fallback="all"`` asks for the guide's own way."""
    ran = Counter()

    def counted(task):
        ran[task] += 1
        return process_task(task)

    manager = StrategyManager.with_strategy(
        cpu_bridge, MyGpuBridge(error="driver error"), ExecutionStrategy.Hybrid(70, 30)
    )
    result = manager.execute(range(40), counted, fallback="all")
    assert result.outputs == squares(40)
    assert result.fallback_occurred
    assert set(ran) == set(range(40))
    assert "Hybrid execution failed: driver error, CPU-only fallback" in caplog.text


# Performance Impact Analysis


def test_small_workloads_select_the_cpu_and_never_touch_the_gpu(cpu_bridge):
    gpu_bridge = MyGpuBridge()
    result = StrategyManager.new(cpu_bridge, gpu_bridge).execute(range(9), process_task)
    assert result.strategy_used == ExecutionStrategy.CpuOnly
    assert gpu_bridge.batches == []


def test_large_workloads_select_the_gpu(cpu_bridge):
    gpu_bridge = MyGpuBridge()
    manager = StrategyManager(cpu_bridge, gpu_bridge, learn=False)
    result = manager.execute(range(51), process_task)
    assert (result.strategy_used, sum(gpu_bridge.batches)) == (ExecutionStrategy.GpuOnly, 51)


# Example: Complete Integration


def transpile_file(file):
    return file.replace(".py", ".wasm")


def test_complete_integration(cpu_bridge, capsys):
    manager = StrategyManager.cpu_only(cpu_bridge)
    source_files = ["file1.py", "file2.py", "file3.py"]

    result = manager.execute(source_files, lambda file: transpile_file(file))

    print(f"Transpiled {len(result.outputs)} files in {result.execution_time}")
    if result.fallback_occurred:
        print(f"Fallback occurred: {result.errors}")

    assert result.outputs == ["file1.wasm", "file2.wasm", "file3.wasm"]
    assert capsys.readouterr().out.startswith("Transpiled 3 files in ")


# Monitoring and Observability


def test_log_events(cpu_bridge, caplog):
    with caplog.at_level(logging.DEBUG, "accelera.execution"):
        StrategyManager(cpu_bridge, MyGpuBridge(), learn=False).execute(range(5), process_task)
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    cores = HardwareCapabilities.detect().cpu_cores
    assert any(
        level == "INFO" and text.startswith(f"Hardware detection: {cores} CPU cores, GPU available: ")
        for level, text in lines
    )
    assert ("DEBUG", "Small workload detected, CPU-only will be faster") in lines
    assert ("INFO", "Executing 5 tasks with strategy: CpuOnly") in lines
    level, last = lines[-1]
    assert level == "INFO"
    assert last.startswith("Execution completed in ")
    assert last.endswith("ms (fallback: false)")


def test_fallback_warnings(cpu_bridge, caplog):
    for error, strategy in (
        ("CUDA out of memory", ExecutionStrategy.GpuOnly),
        ("driver error", ExecutionStrategy.Hybrid(70, 30)),
    ):
        StrategyManager.with_strategy(cpu_bridge, MyGpuBridge(error=error), strategy).execute(
            range(20), process_task
        )
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "GPU execution failed: CUDA out of memory, falling back to CPU" in warnings
    assert "Hybrid execution failed: driver error, CPU-only fallback" in warnings


def test_metrics_collection(cpu_bridge):
    """``metrics::histogram!`` with its two labels, from the fields that the guide names."""
    histogram = []
    result = StrategyManager.cpu_only(cpu_bridge).execute(range(5), process_task)
    histogram.append(
        (
            "transpiler.execution_time_ms",
            result.execution_time * 1000,
            {"strategy": f"{result.strategy_used}", "fallback": str(result.fallback_occurred).lower()},
        )
    )
    (name, milliseconds, labels) = histogram[0]
    assert (name, labels) == ("transpiler.execution_time_ms", {"strategy": "CpuOnly", "fallback": "false"})
    assert milliseconds > 0


def test_metrics_go_to_prometheus(cpu_bridge):
    import prometheus_client as prometheus

    from accelera.execution import PrometheusObserver

    registry = prometheus.CollectorRegistry()
    StrategyManager(cpu_bridge, observers=[PrometheusObserver(registry)]).execute(range(5), process_task)
    told = prometheus.generate_latest(registry).decode()
    assert 'strategy="CpuOnly"' in told
    assert 'fallback="false"' in told


# Best Practices


def test_profile_workloads_and_override_the_choice(cpu_bridge):
    gpu_bridge = MyGpuBridge()
    profile = WorkloadProfile(task_count=60, memory_per_task=1 << 20, complexity=0.8, parallelization=0.5)
    manager = StrategyManager(cpu_bridge, gpu_bridge, learn=False)
    assert manager.execute(range(60), process_task, profile).strategy_used == ExecutionStrategy.Hybrid(70, 30)
    forced = StrategyManager.with_strategy(cpu_bridge, gpu_bridge, ExecutionStrategy.CpuOnly)
    assert forced.execute(range(60), process_task, profile).strategy_used == ExecutionStrategy.CpuOnly


@pytest.mark.parametrize("fault", ["oom_at", "fail_at", "break_at"])
def test_fallback_paths_by_simulated_failures(cpu_bridge, fault):
    gpu_bridge = SimulatedExecutor(**dict[str, Any]({fault: [1]}))
    manager = StrategyManager.with_strategy(cpu_bridge, gpu_bridge, ExecutionStrategy.Hybrid(70, 30))
    result = manager.execute(range(100), process_task)
    assert result.outputs == squares(100)
    assert gpu_bridge.report().failures >= 1


# Troubleshooting


def test_a_high_fallback_rate_is_told(cpu_bridge, caplog):
    gpu_bridge = MyGpuBridge(error="CUDA out of memory")
    manager = StrategyManager.with_strategy(cpu_bridge, gpu_bridge, ExecutionStrategy.GpuOnly)
    for _ in range(20):
        manager.execute(range(3), process_task)
    assert manager.stats().fallback_rate == 1
    assert "fell back to the CPU, more than 10%" in caplog.text


# Appendix: API Reference


def test_the_fields_have_the_guides_names():
    assert {"Auto", "CpuOnly", "GpuOnly", "Hybrid"} <= set(dir(ExecutionStrategy))
    profile = WorkloadProfile(task_count=1, memory_per_task=2, complexity=0.0, parallelization=1.0)
    assert (profile.task_count, profile.memory_per_task) == (1, 2)
    assert (profile.complexity, profile.parallelization) == (0.0, 1.0)
    hardware = HardwareCapabilities.detect()
    assert hardware.cpu_cores >= 1
    assert isinstance(hardware.gpu_available, bool)
    assert hardware.gpu_available or hardware.gpu_memory_bytes == 0
    assert isinstance(hardware.cpu_simd_support, tuple)
    assert hardware.system_memory_bytes > 0
    load = SystemLoad.current()
    assert 0 <= load.memory_pressure <= 1
