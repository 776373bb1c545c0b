"""Prometheus metrics of batches and streams."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, final
from weakref import WeakKeyDictionary, WeakMethod

from accelera._extras import needed_for
from accelera._fork_locks import ForkSafeLock
from accelera.errors import ArgumentError
from accelera.execution.faults.classify import FailureKind as Failure
from accelera.execution.faults.classify import kind_of
from accelera.execution.observability.observer import Observer
from accelera.execution.observability.telemetry import WINDOW
from accelera.execution.strategy.strategy import StrategyKind

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from accelera.execution.result import ExecutionResult, StreamReport


BUCKETS_S = (1e-4, 1e-3, 5e-3, 1e-2, 5e-2, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 1800.0)
"""Upper bounds of the histogram of execution times, in seconds."""
MOST_DEVICES = 256
"""Devices beyond so many are counted together: nodes of a cluster may come and go for ever."""
_MemorySource = WeakMethod[Callable[[], int]] | Callable[[], int]
"""Callback for the free memory of a device; held weakly, so that an unused GPU can be collected."""
_CHOSEN_KINDS = (StrategyKind.CPU_ONLY, StrategyKind.GPU_ONLY, StrategyKind.HYBRID)


@final
class PrometheusObserver(Observer):
    """Keeps metrics of every batch and stream.

    One observer may serve many managers, and many observers one registry. Its metrics are listed in
    ``docs/execution.md``. A batch costs a few microseconds more, a task nothing.

    Parameters
    ----------
    registry
        Where the metrics are registered; None: the library's own.

    Raises
    ------
    BackendMissingError
        When ``prometheus_client`` is not installed.
    TypeError
        When the registry is none.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        with needed_for("PrometheusObserver"):
            import prometheus_client
        if registry is not None and not callable(getattr(registry, "register", None)):
            raise ArgumentError(
                f"[PrometheusObserver] registry={registry!r}: give a prometheus_client.CollectorRegistry, or"
                " None for the library's own"
            )
        self._meters = _meters_of(prometheus_client.REGISTRY if registry is None else registry)

    def on_device(self, device: str, memory_available: Callable[[], int]) -> None:
        """Ask for the free memory whenever metrics are collected, as long as the GPU's executor lives."""
        self._meters.watch_memory(device, memory_available)

    def on_queue(self, change: int) -> None:
        """Count tasks that wait."""
        self._meters.queue.inc(change)

    def on_chunk(self, device: str, task_count: int, seconds: float) -> None:
        """Count tasks and busy seconds of ``device``."""
        tasks, busy_s = self._meters.of_device(device)
        tasks.inc(task_count)
        busy_s.inc(max(seconds, 0.0))

    def on_retry(self, index: int, error: BaseException, device: str) -> None:
        """Count a further attempt."""
        self._meters.retries.inc()

    def on_split(self, device: str, task_count: int, error: BaseException) -> None:
        """Count a GPU that ran out of memory and goes on with fewer tasks."""
        self._meters.splits.inc()

    def on_fallback(self, device: str, task_count: int, error: BaseException) -> None:
        """Count tasks that go to the CPU, by the kind of failure."""
        self._meters.fallbacks[kind_of(error)].inc(task_count)

    def on_done(self, result: ExecutionResult[Any]) -> None:
        """Observe how long it took."""
        self._meters.took(result.strategy_used.kind, result.fallback_occurred, result.execution_time)

    def on_failed(self, error: BaseException, fallback_occurred: bool) -> None:
        """Count a batch that ended with an exception."""
        self._meters.failures.inc()
        self._meters.ended(fallback_occurred)

    def on_stream_end(self, stream: int, report: StreamReport) -> None:
        """Observe how long it took, or count that it ended with an exception."""
        if report.error is not None:
            self.on_failed(report.error, report.fallback_occurred)
        else:
            kind = report.decision.strategy.kind
            self._meters.took(kind, report.fallback_occurred, report.execution_time)


@final
class _Meters:
    """The metrics in one registry, their children bound."""

    def __init__(self, registry: CollectorRegistry) -> None:
        from prometheus_client import Counter, Gauge, Histogram

        name = "accelera_execution"
        seconds = Histogram(
            f"{name}_seconds",
            "Seconds from the call to the last output of a batch or stream.",
            ("strategy", "fallback"),
            registry=registry,
            buckets=BUCKETS_S,
        )
        self.seconds = {
            (kind, fallback): seconds.labels(kind.value, "true" if fallback else "false")
            for kind in _CHOSEN_KINDS
            for fallback in (False, True)
        }
        self._tasks = Counter(f"{name}_tasks", "Tasks finished.", ("device",), registry=registry)
        self._busy_s = Counter(
            f"{name}_busy_seconds", "Seconds of work, over all threads.", ("device",), registry=registry
        )
        fallbacks = Counter(
            f"{name}_fallback_tasks", "Tasks of a GPU left to the CPU.", ("reason",), registry=registry
        )
        self.fallbacks = {kind: fallbacks.labels(kind.value) for kind in Failure}
        self.retries = Counter(f"{name}_retries", "Attempts after the first.", registry=registry)
        self.splits = Counter(f"{name}_oom_splits", "Times a GPU ran out of memory.", registry=registry)
        self.failures = Counter(f"{name}_failures", "Batches and streams that raised.", registry=registry)
        self._rate = Gauge(f"{name}_fallback_rate", "Share of the last 20 that fell back.", registry=registry)
        self.queue = Gauge(f"{name}_queue_depth", "Tasks under way, not done.", registry=registry)
        self._memory = Gauge(
            f"{name}_device_memory_free_bytes", "Free bytes of device memory.", ("device",), registry=registry
        )
        self._memory_sources: dict[str, list[_MemorySource]] = {}
        self._devices: dict[str, tuple[Counter, Counter]] = {}
        self._recent: deque[bool] = deque(maxlen=WINDOW)
        self._lock = ForkSafeLock()

    def watch_memory(self, device: str, memory_available: Callable[[], int]) -> None:
        """Tell the free memory of ``device``; of several of one name the least."""
        source: _MemorySource
        try:
            source = WeakMethod(memory_available)
        except TypeError:
            source = memory_available
        with self._lock:
            known = device in self._memory_sources
            others = [
                each
                for each in self._memory_sources.get(device, ())
                if _live_callback(each) and each != source
            ]
            self._memory_sources[device] = [*others, source]
        if not known:
            self._memory.labels(device).set_function(lambda: _least_free_bytes(self._memory_sources[device]))

    def of_device(self, device: str) -> tuple[Any, Any]:
        """Return the counters of tasks and of busy seconds."""
        if device not in self._devices and len(self._devices) >= MOST_DEVICES:
            device = "others"
        if device not in self._devices:
            self._devices[device] = self._tasks.labels(device), self._busy_s.labels(device)
        return self._devices[device]

    def took(self, kind: StrategyKind, fallback: bool, seconds: float) -> None:
        """Count a batch or stream that is done, and how long it took."""
        self.seconds[kind, fallback].observe(seconds)
        self.ended(fallback)

    def ended(self, fallback: bool) -> None:
        """Count a batch or stream in the rate of fallbacks."""
        with self._lock:
            self._recent.append(fallback)
            self._rate.set(sum(self._recent) / len(self._recent))


_LOCK = ForkSafeLock()
_METERS: WeakKeyDictionary[CollectorRegistry, _Meters] = WeakKeyDictionary()


def _meters_of(registry: CollectorRegistry) -> _Meters:
    with _LOCK:
        if registry not in _METERS:
            _METERS[registry] = _Meters(registry)
        return _METERS[registry]


def _live_callback(source: _MemorySource) -> Callable[[], int] | None:
    return source() if isinstance(source, WeakMethod) else source


def _least_free_bytes(sources: Sequence[_MemorySource]) -> float:
    numbers = [_free_bytes_or_nan(asked) for asked in map(_live_callback, sources) if asked is not None]
    return min((each for each in numbers if not math.isnan(each)), default=math.nan)


def _free_bytes_or_nan(memory_available: Callable[[], int]) -> float:
    """Return what is free; not a number where the device does not say, so that collecting goes on."""
    try:
        return float(memory_available())
    except Exception:
        return math.nan
