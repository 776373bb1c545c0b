"""Load of this machine: shares of processors, memory and GPU in use, read in the background (seed 002)."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple, TypeVar, final

from accelera._extras import loaded_module
from accelera.errors import ArgumentError
from accelera.execution.hardware.capabilities import HardwareCapabilities, nvml_devices
from accelera.memory._internal import host_memory

Value = TypeVar("Value")

_LOGGER = logging.getLogger("accelera.execution")

IDLE_S = 10.0
"""The thread ends when nobody has asked for so long."""


@final
class RefreshedValue(Generic[Value]):
    """Keeps what ``read`` returned.

    Parameters
    ----------
    read
        Returns the value; called by one thread at a time.
    age_s
        Seconds after which the value is read again, while the old one is still given.
    longest_s
        Seconds after which an old value is no longer given: the caller reads it then.
    """

    def __init__(self, read: Callable[[], Value], age_s: float, longest_s: float) -> None:
        self._read = read
        self._age_s = age_s
        self._longest_s = longest_s
        self._reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)

    def __call__(self) -> Value:
        """Return the value as it was lately."""
        kept = self._kept
        if kept is not None:
            old_s = time.monotonic() - kept[0]
            if old_s < self._age_s:
                return kept[1]
            if old_s < self._longest_s:
                self._request_refresh()
                return kept[1]
        return self._refresh()

    def _reset(self) -> None:
        self._kept: tuple[float, Value] | None = None
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._requested = threading.Event()
        self._thread: threading.Thread | None = None

    def _refresh(self) -> Value:
        with self._reading:
            kept = self._kept
            if kept is None or time.monotonic() - kept[0] >= self._age_s:
                kept = self._kept = (time.monotonic(), self._read())
            return kept[1]

    def _request_refresh(self) -> None:
        if self._requested.is_set():
            return
        self._requested.set()
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._serve, name="accelera-load", daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    self._requested.clear()
                else:
                    self._thread = thread

    def _serve(self) -> None:
        while self._await_request():
            try:
                self._refresh()
            except Exception as error:
                _LOGGER.debug("a reading failed, the one before it is kept: %r", error)
            self._requested.clear()

    def _await_request(self) -> bool:
        if self._requested.wait(IDLE_S):
            return True
        with self._lock:
            if self._requested.is_set():
                return True
            self._thread = None
            return False


WORKER_IDS: Final[set[int]] = set()
"""Ids of the worker processes that this process has started, and that have not ended."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=WORKER_IDS.clear)


class ProcessorTime(NamedTuple):
    """Processor time since the system began, in seconds over all processors."""

    busy_s: float
    total_s: float
    own_s: float
    """Of this process."""
    workers_s: Mapping[int, float] = MappingProxyType({})
    """Of each of its worker processes, by id, without what they have started themselves."""

    def own_since(self, before: ProcessorTime) -> float:
        """Return the seconds that this process and its workers have used since ``before``."""
        workers = (spent_s - before.workers_s.get(each, 0.0) for each, spent_s in self.workers_s.items())
        return self.own_s - before.own_s + sum(workers)


@final
class ProcessorMeter:
    """Shares of the processors' time between two readings. Not thread-safe.

    Parameters
    ----------
    proc
        Where the system tells of its processes, on Linux.
    """

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._before: ProcessorTime | None = None

    def read(self) -> tuple[float, float]:
        """Return which share of all processors was busy, and which with the work of other processes.

        Worker processes of this one are no others; the processes of a Ray cluster on this machine are.
        The first reading has nothing before it and goes by the system's load average; so does every one where
        the system does not tell.
        """
        now, before = _processor_time(self._proc), self._before
        self._before = now
        if now is None or before is None or now.total_s <= before.total_s:
            share = _load_average()
            return share, share
        passed = now.total_s - before.total_s
        busy = min(1.0, max(0.0, (now.busy_s - before.busy_s) / passed))
        return busy, max(0.0, busy - now.own_since(before) / passed)


def memory_pressure() -> float:
    """Return which share of the memory that this process may use is taken; control groups count."""
    memory = host_memory()
    return min(1.0, max(0.0, 1 - memory.available_bytes / max(memory.limit_bytes, 1)))


def _processor_time(proc: str) -> ProcessorTime | None:
    if not sys.platform.startswith("linux"):
        return _processor_time_psutil()
    try:
        with open(f"{proc}/stat", "rb", buffering=0) as file:
            ticks = [int(each) for each in file.read(512).split(b"\n", 1)[0].split()[1:9]]
        idle = ticks[3] + ticks[4]
    except (OSError, ValueError, IndexError):
        return None
    per_s = os.sysconf("SC_CLK_TCK")
    busy_s, total_s = (sum(ticks) - idle) / per_s, sum(ticks) / per_s
    return ProcessorTime(busy_s, total_s, time.process_time(), _workers_processor_time(proc, per_s))


def _workers_processor_time(proc: str, per_s: int) -> dict[int, float]:
    spent_s = {}
    for each in tuple(WORKER_IDS):
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"{proc}/{each}/stat", "rb", buffering=0) as file:
                fields = file.read(1024).rpartition(b")")[2].split()
            spent_s[each] = (int(fields[11]) + int(fields[12])) / per_s
    return spent_s


def _processor_time_psutil() -> ProcessorTime:
    import psutil

    times, workers_s = psutil.cpu_times(), {}
    for each in tuple(WORKER_IDS):
        with contextlib.suppress(psutil.Error):
            spent = psutil.Process(each).cpu_times()
            workers_s[each] = spent.user + spent.system
    return ProcessorTime(sum(times) - times.idle, sum(times), time.process_time(), workers_s)


def _load_average() -> float:
    try:
        return min(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    except (AttributeError, OSError):
        return 0.0


AGE_S, LONGEST_S = 0.25, 2.0
"""Seconds for which a reading serves, and is still given while the next one is read."""

_SHARES = (
    "cpu_utilization",
    "gpu_utilization",
    "memory_pressure",
    "gpu_memory_pressure",
    "cpu_taken_by_others",
)


@final
@dataclass(frozen=True, slots=True)
class SystemLoad:
    """Load of the machine, in shares from 0 to 1.

    Raises
    ------
    ValueError
        When a share is outside 0 … 1: 81 % is 0.81.
    """

    cpu_utilization: float = 0.0
    """Of all processors' time lately, the share in use."""
    gpu_utilization: float = 0.0
    """Of the first accelerator's time lately, the share in use; 0 where nobody can tell."""
    memory_pressure: float = 0.0
    """Of the RAM that this process may use, the share taken; limits of control groups count."""
    gpu_memory_pressure: float = 0.0
    """Of the first accelerator's memory, the share taken; 0 where nobody can tell."""
    taken_at: float = 0.0
    """When it was read, in seconds as ``time.monotonic`` tells them."""
    cpu_taken_by_others: float = 0.0
    """Of all processors' time lately, the share that other processes used; our own workers are none."""

    def __post_init__(self) -> None:
        for name in _SHARES:
            share = getattr(self, name)
            if not 0 <= share <= 1:
                raise ArgumentError(f"[SystemLoad] {name}={share}: a share from 0.0 to 1.0; 81 % is 0.81")

    @staticmethod
    def current() -> SystemLoad:
        """Return the load as it was at most a quarter of a second ago, or when last asked, if that is near.

        A reading that is there costs less than a microsecond; a new one is made by a thread of its own.
        """
        return _CURRENT()


_METER = ProcessorMeter()


def _read() -> SystemLoad:
    busy, others = _METER.read()
    gpu = nvml_load() if _has_gpu() else None
    gpu = gpu or _load_of_torch() or NvmlLoad(0.0, 0.0)
    return SystemLoad(
        cpu_utilization=_clamp(busy),
        gpu_utilization=_clamp(gpu.utilization),
        memory_pressure=memory_pressure(),
        gpu_memory_pressure=_clamp(gpu.memory_pressure),
        taken_at=time.monotonic(),
        cpu_taken_by_others=_clamp(others),
    )


def _clamp(read: float) -> float:
    """Return what a driver or the system reports, clamped to 0 … 1."""
    return min(1.0, max(0.0, read))


def _has_gpu() -> bool:
    return HardwareCapabilities.detect().gpu_available


class NvmlLoad(NamedTuple):
    """Load of a GPU, in shares from 0 to 1."""

    utilization: float
    memory_pressure: float


def nvml_load() -> NvmlLoad | None:
    """Return how busy the first GPU is; None where nobody can tell."""
    devices = nvml_devices()
    if not devices:
        return None
    try:
        import pynvml

        memory = pynvml.nvmlDeviceGetMemoryInfo(devices[0].handle)
    except Exception as error:
        _LOGGER.debug("NVML does not say how full the GPU is: %s", error)
        return None
    return NvmlLoad(_utilization(pynvml, devices[0].handle), memory.used / max(memory.total, 1))


def _utilization(pynvml: Any, handle: Any) -> float:
    try:
        return float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
    except Exception as error:
        _LOGGER.debug("NVML does not say how busy the GPU is: %s", error)
        return 0.0


def _load_of_torch() -> NvmlLoad | None:
    """Return the pressure on the memory of the current CUDA device, unless that would start CUDA.

    None also where a device that is broken does not say, or torch is only being loaded.
    """
    torch = loaded_module("torch")
    try:
        if torch is None or not (torch.cuda.is_available() and torch.cuda.is_initialized()):
            return None
        free_bytes, total_bytes = torch.cuda.mem_get_info()
    except (RuntimeError, AttributeError) as error:
        _LOGGER.debug("torch does not say how full the GPU is: %s", error)
        return None
    return NvmlLoad(0.0, 1 - free_bytes / max(total_bytes, 1))


_CURRENT = RefreshedValue(_read, AGE_S, LONGEST_S)
