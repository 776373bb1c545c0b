"""Measurement of the interpreter lock while the threads of a batch work.

The thread that waits for a batch wakes every few milliseconds and measures the time until it has the lock.
Time in which it had no core is subtracted, so that the answer does not depend on the load of the machine: a
function that holds the lock delays every sample by up to the switch interval of the interpreter, one that
releases the lock delays none. The cores that threads use cannot decide this, since other programs take them
away for the same effect.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, final

from accelera._fork_locks import ForkSafeLock
from accelera.execution.tasks.queue import DeviceKind, Joinable, TaskQueue, TaskRange

SAMPLE_PERIOD_S: Final = 3e-3
"""Seconds between two samples until the answer is known."""
SLOW_PERIOD_S: Final = 0.05
"""Seconds between two samples afterwards."""
LOCK_WAIT_S: Final = 1e-3
"""A sample that waits longer found the lock held for long; the switch interval is five times as long."""
MIN_SAMPLES: Final = 20
"""Number of samples before the probe answers."""
MAX_SAMPLES: Final = 400
"""Number of samples after which all earlier measurements count half."""
HELD_FRACTION: Final = 0.93
"""Fraction of samples from which the lock counts as held all the time: not all of them, for timers vary."""
MAX_CORES: Final = 1.2
"""Threads that use more cores than this do not wait for the lock all the time."""
MIN_CORES: Final = 0.2
"""Threads that use fewer cores than this wait for something, and another thread holds the lock."""


@final
class RunDelayClock:
    """Seconds in which the thread that enters it was ready to run and had no core; 0 except on Linux."""

    def __init__(self) -> None:
        self._file: int | None = None

    def __enter__(self) -> RunDelayClock:
        """Open the file of the kernel."""
        try:
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        except OSError:
            self._file = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)

    def read(self) -> float:
        """Return the seconds so far."""
        if self._file is None:
            return 0.0
        try:
            return int(os.pread(self._file, 64, 0).split()[1]) * 1e-9
        except (OSError, ValueError, IndexError):
            return 0.0


@final
class LockProbe:
    """Samples of the interpreter lock, and the cores that threads used, for one function. Thread-safe."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self.reported = False
        """Whether the log recommended processes already."""
        self._samples = self._waits = 0.0
        self._busy_s = self._wall_s = 0.0

    def add_sample(self, wait_s: float) -> None:
        """Add the seconds that a thread waited for the lock."""
        with self._lock:
            if self._samples >= MAX_SAMPLES:
                self._samples, self._waits = self._samples / 2, self._waits / 2
                self._busy_s, self._wall_s = self._busy_s / 2, self._wall_s / 2
            self._samples += 1
            self._waits += wait_s > LOCK_WAIT_S

    def add_range(self, threads: int, wall_s: float, busy_s: float) -> None:
        """Add a range that one of ``threads`` ran: its duration, and the seconds in which it had a core."""
        with self._lock:
            self._busy_s += threads * busy_s
            self._wall_s += wall_s

    @property
    def period_s(self) -> float:
        """Seconds until the next sample."""
        return SAMPLE_PERIOD_S if self._samples < 4 * MIN_SAMPLES else SLOW_PERIOD_S

    @property
    def held_fraction(self) -> float | None:
        """Fraction of the samples that found the lock held; None: too few samples."""
        with self._lock:
            return self._waits / self._samples if self._samples >= MIN_SAMPLES else None

    @property
    def cores(self) -> float | None:
        """Number of cores that all threads used together; None: no measurement."""
        with self._lock:
            return self._busy_s / self._wall_s if self._wall_s else None

    @property
    def is_held(self) -> bool:
        """Whether the threads wait for the lock, so that they are no faster than one."""
        fraction, cores = self.held_fraction, self.cores
        if fraction is None or cores is None:
            return False
        return fraction >= HELD_FRACTION and MIN_CORES <= cores < MAX_CORES


@final
class _RunningRange(NamedTuple):
    """Clocks of a thread when it took a range, and the number of threads that had one."""

    wall_s: float
    busy_s: float
    threads: int


@final
class ProbedQueue:
    """Proxy of a queue that samples the interpreter lock while at least two threads run tasks.

    Parameters
    ----------
    queue
        The batch.
    probe
        Takes the measurements.
    on_sample
        Called after each sample, in the thread that waits for the others.
    """

    def __init__(self, queue: TaskQueue, probe: LockProbe, on_sample: Callable[[], None]) -> None:
        self._queue = queue
        self._probe = probe
        self._on_sample = on_sample
        self._lock = threading.Lock()
        self._running = 0
        """Number of threads that run a range."""
        self._thread_state = threading.local()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def take(self, side: DeviceKind, count: int, *, wait: bool = True) -> TaskRange | None:
        """End the measurement of the calling thread's range, and return the next range.

        The time in which a thread waits for its next range does not count: a stream may wait for its source.
        """
        self._end_range()
        piece = self._queue.take(side, count, wait=wait)
        if piece is not None:
            self._begin_range()
        return piece

    def wait(self, threads: Sequence[Joinable]) -> None:
        """Return when ``threads`` have ended, and sample the lock meanwhile."""
        with RunDelayClock() as delay:
            for thread in threads:
                self._sample_until_end(thread, delay)

    def _sample_until_end(self, thread: Joinable, delay: RunDelayClock) -> None:
        since_s, delay_s = time.perf_counter(), delay.read()
        while thread.is_alive():
            period_s, were_several = self._probe.period_s, self._running > 1
            thread.join(period_s)
            now_s, now_delay_s = time.perf_counter(), delay.read()
            # A thread that ends wakes this one early, which measures nothing.
            if were_several and self._running > 1 and now_s - since_s >= period_s:
                self._probe.add_sample(now_s - since_s - (now_delay_s - delay_s) - period_s)
                self._on_sample()
            since_s, delay_s = now_s, now_delay_s

    def _begin_range(self) -> None:
        with self._lock:
            self._running += 1
            threads = self._running
        self._thread_state.range = _RunningRange(time.perf_counter(), time.thread_time(), threads)

    def _end_range(self) -> None:
        running: _RunningRange | None = getattr(self._thread_state, "range", None)
        if running is None:
            return
        self._thread_state.range = None
        with self._lock:
            threads = max(running.threads, self._running)
            self._running -= 1
        # One thread alone uses one core, whatever it does.
        if threads > 1:
            wall_s = time.perf_counter() - running.wall_s
            self._probe.add_range(threads, wall_s, time.thread_time() - running.busy_s)
