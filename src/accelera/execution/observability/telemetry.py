"""Telemetry of one batch or stream: counted, logged, passed to observers, and added to a manager's totals."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

from accelera.devices._internal import words_of
from accelera.execution.faults.classify import FailureKind, kind_of
from accelera.execution.hardware.capabilities import HardwareCapabilities
from accelera.execution.observability.observer import Observer
from accelera.execution.result import DeviceShare, ManagerStats
from accelera.execution.strategy.strategy import SMALL_TASK_COUNT, Decision, StrategyKind

if TYPE_CHECKING:
    from accelera.execution.result import ExecutionResult, StreamReport


_LOGGER = logging.getLogger("accelera.execution")


def is_logged() -> bool:
    """Return whether anybody reads how batches begin and end."""
    return _LOGGER.isEnabledFor(logging.INFO)


def log_hardware(has_gpu: Callable[[], bool] | None = None) -> None:
    """Say what there is; looked for only where somebody listens.

    ``has_gpu`` tells whether a manager's own GPU can be used; None: it has none, and the machine's is logged.
    """
    if is_logged():
        hardware = HardwareCapabilities.detect()
        available = hardware.gpu_available if has_gpu is None else has_gpu()
        _LOGGER.info(
            "Hardware detection: %d CPU cores, GPU available: %s", hardware.cpu_cores, _bool_text(available)
        )


def log_begin(task_count: int, decision: Decision) -> None:
    """Say what is about to be done, and why."""
    if not is_logged():
        return
    chosen = decision.rule != "given" and decision.strategy.kind is StrategyKind.CPU_ONLY
    if chosen and task_count < SMALL_TASK_COUNT:
        _LOGGER.debug("Small workload detected, CPU-only will be faster")
    _log_reasons(decision)
    _LOGGER.info("Executing %d tasks with strategy: %s", task_count, decision.strategy)


def log_stream(decision: Decision) -> None:
    """Say that a stream begins, and why it runs there."""
    if is_logged():
        _log_reasons(decision)
        _LOGGER.info("Executing a stream with strategy: %s", decision.strategy)


def log_stream_end(report: StreamReport) -> None:
    """Say how it went."""
    if not is_logged():
        return
    if report.error is not None:
        log_failed(report.execution_time, report.error, report.fallback_occurred)
    else:
        log_end(report)
        _LOGGER.info("Stream %s after %d tasks", report.ended_by, report.task_count)


def log_end(result: ExecutionResult[Any] | StreamReport) -> None:
    """Say how it went."""
    if is_logged():
        stopped_by = getattr(result, "stopped_by", None)
        _LOGGER.info(
            "Execution %s in %.1fms (fallback: %s)",
            f"ended early ({stopped_by})" if stopped_by else "completed",
            1e3 * result.execution_time,
            _bool_text(result.fallback_occurred),
        )


def log_failed(seconds: float, error: BaseException, fallback_occurred: bool) -> None:
    """Say that a batch or stream ended with an exception."""
    if is_logged():
        kind, fallback = type(error).__name__, _bool_text(fallback_occurred)
        _LOGGER.info("Execution failed in %.1fms (fallback: %s): %s", 1e3 * seconds, fallback, kind)


def log_fallback(error: BaseException, *, hybrid: bool, again: bool) -> None:
    """Say that the CPU takes over; what a batch has said ``again`` only where details are wanted."""
    text = (
        "Hybrid execution failed: %s, CPU-only fallback"
        if hybrid
        else "GPU execution failed: %s, falling back to CPU"
    )
    _LOGGER.log(logging.DEBUG if again else logging.WARNING, text, words_of(error))


def _log_reasons(decision: Decision) -> None:
    for reason in decision.reasons:
        _LOGGER.debug("%s: %s", decision.rule, reason)


def _bool_text(value: bool) -> str:
    return "true" if value else "false"


WINDOW = 20
"""The last so many executions are looked at."""
MOST = 0.1
"""Above this share of them falling back, something should be done."""

_REMEDY = {
    FailureKind.MEMORY: "state memory_per_task in the WorkloadProfile, prefer Hybrid to GpuOnly, watch its"
    " memory",
    FailureKind.TRANSIENT: "look at the GPU's log and update its driver",
    FailureKind.STICKY: "restart the process: its context on the GPU is lost; then update the driver",
    FailureKind.UNKNOWN: "test the GPU's executor, and the function's form for many, by themselves: one"
    " raises where the CPU does not",
}
_ALWAYS = "batches too small for a GPU fare better with CpuOnly"
_NONE = frozenset[FailureKind]()


@final
class FallbackRate:
    """Remembers how the last executions went. Not thread-safe."""

    def __init__(self) -> None:
        self._recent: deque[frozenset[FailureKind]] = deque(maxlen=WINDOW)
        self._fallbacks = 0
        self._warned = False

    @property
    def rate(self) -> float:
        """The share of the last executions that fell back, from 0 to 1; 0 where there was none."""
        return self._fallbacks / len(self._recent) if self._recent else 0.0

    def count(self, reasons: Collection[FailureKind]) -> str | None:
        """Count an execution and why it fell back, if it did; return a warning when one is due.

        One is due when the rate rises above its limit, and not again before it has been below.
        """
        if not (reasons or self._fallbacks):
            self._recent.append(_NONE)
            return None
        if len(self._recent) == WINDOW and self._recent[0]:
            self._fallbacks -= 1
        self._recent.append(frozenset(reasons))
        self._fallbacks += bool(reasons)
        if self._fallbacks <= MOST * len(self._recent):
            self._warned = False
            return None
        if self._warned or len(self._recent) < WINDOW:
            return None
        self._warned = True
        return self._warning()

    def _warning(self) -> str:
        found = Counter(kind for reasons in self._recent for kind in reasons)
        kinds = [kind for kind, _ in found.most_common()]
        histogram = ", ".join(f"{found[kind]} x {kind.value}" for kind in kinds)
        remedies = "; ".join([*(_REMEDY[kind] for kind in kinds), _ALWAYS])
        return (
            f"{self.rate:.0%} of the last {WINDOW} executions fell back to the CPU, more than {MOST:.0%}"
            f" ({histogram}): {remedies}"
        )


MOST_SAMPLES = 1024
"""More pieces of one batch and device say nothing new of how fast a device is."""
MOST_ERRORS = 64
"""Of a stream, which may never end, no more failures of devices are kept."""


@final
class Telemetry:
    """Counts of one batch or stream, from all lanes that work on it; passed on to observers."""

    __slots__ = (
        "_fallback_kinds",
        "_hybrid",
        "_lock",
        "_observers",
        "_queued",
        "_waiting",
        "device_errors",
        "fallen_back",
        "oom_splits",
        "per_device",
        "retries",
        "samples",
    )

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self.per_device: dict[str, DeviceShare] = {}
        self.retries = 0
        self.oom_splits = 0
        self.fallen_back = 0
        """Tasks that were a GPU's and went to the CPU because it failed."""
        self.device_errors: list[BaseException] = []
        self.samples: list[tuple[str, int, float]] = []
        """Pieces that went well as a whole: device, tasks, seconds."""
        self._observers = observers
        self._lock = threading.Lock()
        self._waiting = 0
        self._queued: int | None = None
        self._hybrid = False
        self._fallback_kinds: set[FailureKind] = set()

    def uses(self, device: str, memory_available: Callable[[], int]) -> None:
        """Tell observers that a manager was made with a GPU."""
        self._notify("on_device", device, memory_available)

    def decided(self, decision: Decision, task_count: int) -> None:
        """Report that a strategy was chosen for a batch."""
        self._waiting = task_count
        self._hybrid = decision.strategy.kind is StrategyKind.HYBRID
        if self._observers:
            self._notify("on_decision", decision, task_count)
            self._notify("on_queue", task_count)
        log_begin(task_count, decision)

    def streams(self, number: int, decision: Decision) -> None:
        """Report the beginning of a stream."""
        self._queued = 0
        self._hybrid = decision.strategy.kind is StrategyKind.HYBRID
        self._notify("on_stream", number, decision)

    def waits(self, change: int) -> None:
        """Add drawn tasks of a stream to its queue depth; a negative ``change`` removes done ones."""
        if not self._observers:
            return
        with self._lock:
            if self._queued is None:
                return
            self._queued += change
        self._notify("on_queue", change)

    def streamed(self, number: int, report: StreamReport) -> None:
        """Report the end of a stream."""
        with self._lock:
            left, self._queued = self._queued, None
        if left:
            self._notify("on_queue", -left)
        self._notify("on_stream_end", number, report)

    def done(self, result: ExecutionResult[Any], totals: ManagerTotals) -> None:
        """Log a finished batch, count it in ``totals``, tell observers."""
        log_end(result)
        totals.count(self)
        self._clear_waiting()
        self._notify("on_done", result)

    def failed(self, error: BaseException, seconds: float, totals: ManagerTotals) -> None:
        """Log a batch that ended with an exception, count it in ``totals``, tell observers."""
        log_failed(seconds, error, self.fallen_back > 0)
        totals.count(self, failed=True)
        self._clear_waiting()
        self._notify("on_failed", error, self.fallen_back > 0)

    def ran(
        self, device: str, task_count: int, seconds: float, *, whole: bool = True, counted: bool = False
    ) -> None:
        """Report a piece that ``device`` ran, before its outputs are delivered; failed tasks count apart.

        ``whole``: every task of the piece has an output, so that the time is a sample. ``counted``: add the
        tasks to the device's share now; otherwise ``count_tasks`` does so when the outputs are delivered.
        """
        with self._lock:
            share = self._share(device)
            share.tasks += task_count if counted else 0
            share.batches += 1
            share.busy_s += seconds
            if whole and (share.batches <= MOST_SAMPLES or self._queued is not None):
                self.samples.append((device, task_count, seconds))
        self._notify_chunk(device, task_count, seconds)

    def count_tasks(self, device: str, task_count: int) -> None:
        """Count tasks that are done, or failed for good; observers hear by ``ran`` and ``tell_failed``."""
        with self._lock:
            self._share(device).tasks += task_count

    def tell_failed(self, device: str) -> None:
        """Tell of a task that was counted as failed."""
        self._notify_chunk(device, 1, 0.0)

    def take_samples(self) -> list[tuple[str, int, float]]:
        """Return the samples since this was last called; a stream learns as it goes."""
        with self._lock:
            taken, self.samples = self.samples, []
        return taken

    @property
    def reasons(self) -> Collection[FailureKind]:
        """The kinds of failures for which tasks fell back."""
        return self._fallback_kinds if self.fallen_back else ()

    def shares(self) -> dict[str, DeviceShare]:
        """Return what each device has done so far, as it is now."""
        with self._lock:
            each = self.per_device.items()
            return {name: DeviceShare(share.tasks, share.batches, share.busy_s) for name, share in each}

    def retried(self, index: int, error: BaseException, device: str) -> None:
        """Count and report a retry of a task."""
        with self._lock:
            self.retries += 1
        self._notify("on_retry", index, error, device)

    def split(self, device: str, task_count: int, error: BaseException) -> None:
        """Count and report that ``device`` ran out of memory on ``task_count`` tasks at once."""
        with self._lock:
            self.oom_splits += 1
        self._notify("on_split", device, task_count, error)

    def fell_back(self, device: str, task_count: int, error: BaseException) -> None:
        """Count and report tasks of ``device`` that fall back to the CPU."""
        kind = kind_of(error)
        if kind is FailureKind.USER:
            kind = FailureKind.UNKNOWN
        with self._lock:
            self.fallen_back += task_count
            known = self.device_errors and self.device_errors[-1] is error
            if not known and (self._queued is None or len(self.device_errors) < MOST_ERRORS):
                self.device_errors.append(error)
            again = kind in self._fallback_kinds
            self._fallback_kinds.add(kind)
        log_fallback(error, hybrid=self._hybrid, again=again)
        self._notify("on_fallback", device, task_count, error)

    def breaker(self, device: str, state: str) -> None:
        """Report a new state of the breaker of ``device``."""
        self._notify("on_breaker", device, state)

    def _share(self, device: str) -> DeviceShare:
        share = self.per_device.get(device)
        if share is None:
            share = self.per_device[device] = DeviceShare()
        return share

    def _notify_chunk(self, device: str, task_count: int, seconds: float) -> None:
        with self._lock:
            fewer = min(task_count, self._waiting)
            self._waiting -= fewer
        if self._observers:
            self._notify("on_chunk", device, task_count, seconds)
            if fewer:
                self._notify("on_queue", -fewer)

    def _clear_waiting(self) -> None:
        if not self._waiting:
            return
        with self._lock:
            left, self._waiting = self._waiting, 0
        if left:
            self._notify("on_queue", -left)

    def _notify(self, what: str, *facts: Any) -> None:
        for observer in self._observers:
            try:
                getattr(observer, what)(*facts)
            except Exception:
                _LOGGER.exception("%s of %r raised; the work goes on", what, observer)


@final
class ManagerTotals:
    """Counts batches when they are over; warns when too many of them fall back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._executions = self._failures = self._fallbacks = 0
        self._per_device: dict[str, DeviceShare] = {}
        self._rate = FallbackRate()

    def count(self, telemetry: Telemetry, *, failed: bool = False) -> None:
        """Add what was seen of one batch."""
        reasons = telemetry.reasons
        with self._lock:
            self._executions += 1
            self._failures += failed
            self._fallbacks += bool(reasons)
            for device in tuple(telemetry.per_device):
                self._add(device, telemetry.per_device[device])
            warning = self._rate.count(reasons)
        if warning is not None:
            _LOGGER.warning("%s", warning)

    def count_done(self, per_device: Mapping[str, DeviceShare]) -> None:
        """Add a batch in which nothing failed."""
        with self._lock:
            self._executions += 1
            for device, share in per_device.items():
                self._add(device, share)
            self._rate.count(())

    def stats(self) -> ManagerStats:
        """Return the counts as they are now."""
        with self._lock:
            shares = {
                device: DeviceShare(share.tasks, share.batches, share.busy_s)
                for device, share in self._per_device.items()
            }
            return ManagerStats(self._executions, self._failures, self._fallbacks, self._rate.rate, shares)

    def _add(self, device: str, share: DeviceShare) -> None:
        total = self._per_device.get(device)
        if total is None:
            total = self._per_device[device] = DeviceShare()
        total.tasks += share.tasks
        total.batches += share.batches
        total.busy_s += share.busy_s
