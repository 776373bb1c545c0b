"""Batches of work as metrics of Prometheus, through the library itself."""

from __future__ import annotations

import gc
import math
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry

from accelera.errors import BackendMissingError
from accelera.execution import ExecutionStrategy, PrometheusObserver, Retry, StrategyManager, ThreadsExecutor
from accelera.execution.faults.classify import FailureKind, kind_of
from accelera.execution.observability.prometheus import MOST_DEVICES
from accelera.testing._internal import BridgeGpu
from tests.execution.stand_ins import square
from tests.threads import run_in_threads


class Gpu(BridgeGpu):
    """A GPU whose driver may be gone."""

    free_bytes = 3 << 30

    def memory_available(self) -> int:
        if self.free_bytes < 0:
            raise RuntimeError("the driver is gone")
        return self.free_bytes


class Meter:
    """One registry and its samples."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.observer = PrometheusObserver(self.registry)

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"accelera_execution_{name}", labels)


@pytest.fixture
def meter() -> Meter:
    return Meter()


def test_a_batch_is_in_the_histogram_and_its_tasks_are_counted(meter: Meter) -> None:
    manager = StrategyManager(observers=[meter.observer])
    manager.execute(range(5), square)
    manager.execute(range(1000), square)
    assert meter("seconds_count", strategy="CpuOnly", fallback="false") == 2
    assert (meter("seconds_sum", strategy="CpuOnly", fallback="false") or 0) > 0
    assert meter("tasks_total", device="cpu") == 1005
    assert (meter("busy_seconds_total", device="cpu") or 0) > 0
    assert meter("fallback_rate") == 0
    assert meter("queue_depth") == 0


def test_failing_gpus_are_counted_by_reason(meter: Meter) -> None:
    manager = StrategyManager(None, Gpu(max_batch=0), ExecutionStrategy.GpuOnly, observers=[meter.observer])
    manager.execute(range(6), square)
    assert meter("seconds_count", strategy="GpuOnly", fallback="true") == 1
    assert meter("fallback_tasks_total", reason="out of memory") == 6
    assert meter("fallback_rate") == 1
    StrategyManager(observers=[meter.observer]).execute([1], square)
    assert meter("fallback_rate") == 0.5


@pytest.mark.parametrize("words", ["CUDA out of memory", "unspecified launch failure", "CUDA error: 1"])
@pytest.mark.parametrize(
    ("strategy", "share"), [(ExecutionStrategy.GpuOnly, 100), (ExecutionStrategy.Hybrid(70, 30), 70)]
)
def test_every_task_of_a_broken_gpu_is_counted_for_what_broke_it(
    meter: Meter, words: str, strategy: ExecutionStrategy, share: int
) -> None:
    gpu = _Broken(words)

    def once_it_is_broken(task: int) -> int:
        assert gpu.is_broken.wait(300)
        return -task

    manager = StrategyManager(ThreadsExecutor(2), gpu, strategy, observers=[meter.observer])
    for batches in (1, 2, 3):
        assert manager.execute(range(100), once_it_is_broken).outputs == [-task for task in range(100)]
        counts = {kind: meter("fallback_tasks_total", reason=kind.value) for kind in FailureKind}
        assert counts == {
            kind: batches * share * (kind is kind_of(RuntimeError(words))) for kind in FailureKind
        }


class _Broken(Gpu):
    """Fails whatever it is given; tells when it has been given what it could hold or try no smaller."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.words = words
        self.is_broken = threading.Event()

    def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> list[Any]:
        if len(tasks) == 1 or "memory" not in self.words:
            self.is_broken.set()
        raise RuntimeError(self.words)


def test_splits_and_retries_are_counted(meter: Meter) -> None:
    manager = StrategyManager(None, Gpu(max_batch=8), ExecutionStrategy.GpuOnly, observers=[meter.observer])
    result = manager.execute(range(32), square)
    assert meter("oom_splits_total") == result.oom_splits > 0
    assert meter("tasks_total", device="fake") == 32

    seen: list[int] = []

    def once_bad(task: int) -> int:
        seen.append(task)
        if len(seen) == 1:
            raise OSError("try again")
        return task

    StrategyManager(observers=[meter.observer]).execute([1, 2], once_bad, retry=Retry(1))
    assert meter("retries_total") == 1


def test_a_batch_that_raises_is_counted_and_waits_no_longer(meter: Meter) -> None:
    manager = StrategyManager(observers=[meter.observer])
    with pytest.raises(ZeroDivisionError):
        manager.execute(range(30), lambda task: 1 // (task - 20))
    assert meter("failures_total") == 1
    assert meter("queue_depth") == 0


def test_the_queue_is_seen_from_outside_while_it_waits(meter: Meter) -> None:
    manager = StrategyManager(ThreadsExecutor(1), observers=[meter.observer])
    depths: list[float | None] = []
    manager.execute(range(8), lambda task: depths.append(meter("queue_depth")), retry=Retry())
    assert depths[0] == 8
    assert depths[-1] is not None
    assert 1 <= depths[-1] <= 8
    assert meter("queue_depth") == 0


def test_device_memory_is_asked_for_when_metrics_are_collected(meter: Meter) -> None:
    gpu = Gpu()
    StrategyManager(None, gpu, observers=[meter.observer])
    assert meter("device_memory_free_bytes", device="fake") == 3 << 30
    gpu.free_bytes = 1 << 20
    assert meter("device_memory_free_bytes", device="fake") == 1 << 20
    gpu.free_bytes = -1
    assert (
        'device_memory_free_bytes{device="fake"} NaN'
        in prometheus_client.generate_latest(meter.registry).decode()
    )


def test_gpus_of_one_name_tell_the_least_that_is_free_and_go_when_nobody_holds_them(meter: Meter) -> None:
    first, second = Gpu(), Gpu()
    second.free_bytes = 1 << 30
    managers = [StrategyManager(None, gpu, observers=[meter.observer]) for gpu in (first, second, first)]
    assert len(managers) == 3
    assert meter("device_memory_free_bytes", device="fake") == 1 << 30
    gone = weakref.ref(second)
    managers.clear()
    del second
    gc.collect()
    assert gone() is None
    assert meter("device_memory_free_bytes", device="fake") == 3 << 30
    del first
    gc.collect()
    assert math.isnan(meter("device_memory_free_bytes", device="fake") or 0)


def test_nodes_that_come_and_go_do_not_make_labels_without_end(meter: Meter) -> None:
    for node in range(MOST_DEVICES + 50):
        meter.observer.on_chunk(f"ray:10.0.0.1/{node:06x}", 3, 0.5)
    assert meter("tasks_total", device="ray:10.0.0.1/000000") == 3
    assert meter("tasks_total", device="others") == 150
    assert meter("busy_seconds_total", device="others") == 25
    meter.observer.on_chunk("ray:10.0.0.1/000000", 1, 0.5)
    assert meter("tasks_total", device="ray:10.0.0.1/000000") == 4


def test_observers_of_one_registry_share_its_metrics(meter: Meter) -> None:
    other = PrometheusObserver(meter.registry)
    StrategyManager(observers=[meter.observer]).execute([1, 2], square)
    StrategyManager(observers=[other]).execute([1, 2, 3], square)
    assert meter("tasks_total", device="cpu") == 5


def test_without_a_registry_metrics_go_where_the_library_keeps_them() -> None:
    def told() -> float:
        name, labels = "accelera_execution_tasks_total", {"device": "cpu"}
        return prometheus_client.REGISTRY.get_sample_value(name, labels) or 0.0

    before = told()
    StrategyManager(observers=[PrometheusObserver()]).execute([1, 2], square)
    assert told() == before + 2


def test_managers_in_threads_may_share_an_observer(meter: Meter) -> None:
    manager = StrategyManager(observers=[meter.observer])
    run_in_threads(*[lambda: [manager.execute(range(9), square) for _ in range(50)]] * 4)
    assert meter("tasks_total", device="cpu") == 1800
    assert meter("seconds_count", strategy="CpuOnly", fallback="false") == 200
    assert meter("queue_depth") == 0


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(BackendMissingError, match=r"pip install 'accelera-engine\[metrics\]'"):
        PrometheusObserver()
