"""Lease on its node: a queue with a time limit, a log of the tasks in flight, and a buffer of results."""

from __future__ import annotations

import contextlib
import mmap
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

from accelera.execution.cluster.contract import (
    DeviceIncident,
    Done,
    GpuReport,
    Lease,
    LeasePart,
    Range,
    pack_outcomes,
    unpack_tasks,
)
from accelera.execution.executors.processes.errors import PickledError, pack_error
from accelera.execution.observability.observer import Observer
from accelera.execution.observability.telemetry import Telemetry
from accelera.execution.strategy.rates import DeviceRates
from accelera.execution.tasks.balance import Dispatcher, LoadBalancer, Offer, RangeQueue
from accelera.execution.tasks.queue import DeviceKind, QueueOptions, Suspicion, TaskQueue, TaskRange

KEPT_S: Final = 86_400.0
"""Seconds that the file of a dead process is kept for its successor."""
_SLOT: Final = struct.Struct("<qq")


@final
class InFlightLog:
    """One slot for each of ``count`` threads in a mapped file: writing takes no system call."""

    def __init__(self, lease: str, count: int) -> None:
        self._path = _path(lease)
        size = _SLOT.size * count
        self._path.write_bytes(bytes(size))
        with self._path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), size)
        self._free = list(range(count))
        self._slots: dict[int, int] = {}

    def begin(self, start: int, stop: int) -> None:
        """Note that the calling thread is about to run the tasks from ``start`` up to ``stop``."""
        slot = self._slots[threading.get_ident()] = self._free.pop()
        _SLOT.pack_into(self._map, slot * _SLOT.size, start, stop)

    def end(self) -> None:
        """Note that the calling thread is done with them."""
        slot = self._slots.pop(threading.get_ident())
        _SLOT.pack_into(self._map, slot * _SLOT.size, 0, 0)
        self._free.append(slot)

    def close(self) -> None:
        """Remove the file."""
        self._path.unlink(missing_ok=True)


def read_in_flight(lease: str) -> list[Range]:
    """Return what was under way of a lease whose process is no more, and remove the file."""
    try:
        found = _path(lease).read_bytes()
    except FileNotFoundError:
        return []
    _path(lease).unlink()
    return [(start, stop) for start, stop in _SLOT.iter_unpack(found) if start < stop]


def remove_old_logs() -> None:
    """Remove what was left here by processes that nobody asked about, a day ago or longer."""
    for path in _path("").parent.glob(f"{_path('').name}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > KEPT_S:
                path.unlink()


def _path(lease: str) -> Path:
    return Path(tempfile.gettempdir()) / f"accelera-lease-{lease}"


def _zero_counts() -> dict[DeviceKind, int]:
    return dict.fromkeys(DeviceKind, 0)


def _zero_seconds() -> dict[DeviceKind, float]:
    return dict.fromkeys(DeviceKind, 0.0)


@dataclass(slots=True)
class _PendingPart:
    done: Done = field(default_factory=list)
    retried: list[tuple[int, PickledError]] = field(default_factory=list)
    splits: list[DeviceIncident] = field(default_factory=list)
    fallbacks: list[DeviceIncident] = field(default_factory=list)
    tasks: dict[DeviceKind, int] = field(default_factory=_zero_counts)
    busy_s: dict[DeviceKind, float] = field(default_factory=_zero_seconds)

    def __bool__(self) -> bool:
        return bool(self.done or self.retried or self.splits or self.fallbacks)


@final
class ResultBuffer(Observer):
    """Buffer of outcomes from the threads that work on a lease, until the next part is sent.

    Parameters
    ----------
    workers
        Tasks that the node's processors run at once.
    gpu
        Name of the GPU that takes part; None: none does.
    apart
        Whether every outcome is pickled by itself, so that one that cannot be unpickled harms no other.
    """

    def __init__(self, workers: int, gpu: str | None = None, *, apart: bool = False) -> None:
        self._apart = apart
        self._workers = workers
        self._gpu = gpu
        self._pending = _PendingPart()
        self._at: dict[int, tuple[DeviceKind, float]] = {}
        self._lock = threading.Lock()

    def begin(self, side: DeviceKind) -> None:
        """Note that the calling thread, of ``side``, begins something."""
        with self._lock:
            self._at[threading.get_ident()] = side, time.perf_counter()

    def end(self) -> None:
        """Note that the calling thread has ended its range."""
        with self._lock:
            self._count_time()
            del self._at[threading.get_ident()]

    def put(self, start: int, outcomes: Sequence[Any]) -> None:
        """Take the outcomes of the tasks from index ``start`` on, from the thread that ran them."""
        with self._lock:
            self._pending.tasks[self._count_time()] += len(outcomes)
            done = self._pending.done
            if self._apart:
                done += [(start + position, [each]) for position, each in enumerate(outcomes)]
            elif done and done[-1][0] + len(done[-1][1]) == start:
                done[-1][1].extend(outcomes)
            else:
                done.append((start, list(outcomes)))

    def on_retry(self, index: int, error: BaseException, device: str) -> None:
        """Take note of an attempt that is followed by another."""
        raised = pack_error(error)
        with self._lock:
            self._pending.retried.append((index, raised))

    def on_split(self, device: str, task_count: int, error: BaseException) -> None:
        """Take note that so many tasks at once did not fit the GPU."""
        raised = pack_error(error)
        with self._lock:
            self._pending.splits.append((task_count, raised))

    def on_fallback(self, device: str, task_count: int, error: BaseException) -> None:
        """Take note that so many tasks went from the GPU to the processors."""
        raised = pack_error(error)
        with self._lock:
            self._pending.fallbacks.append((task_count, raised))

    def part(self, *, last: bool) -> LeasePart | None:
        """Return what there is since the last part; None when that is nothing."""
        with self._lock:
            if not self._pending:
                return None
            found, self._pending = self._pending, _PendingPart()
        seconds = found.busy_s[DeviceKind.CPU] / self._workers
        return LeasePart(pack_outcomes(found.done), seconds, found.retried, last, self._on_gpu(found))

    def _on_gpu(self, found: _PendingPart) -> GpuReport | None:
        if self._gpu is None:
            return None
        tasks, seconds = found.tasks[DeviceKind.GPU], found.busy_s[DeviceKind.GPU]
        return GpuReport(self._gpu, tasks, seconds, found.splits, found.fallbacks)

    def _count_time(self) -> DeviceKind:
        """Add the calling thread's time so far to that of its side, and return the side."""
        thread, now_s = threading.get_ident(), time.perf_counter()
        side, since_s = self._at[thread]
        self._pending.busy_s[side] += now_s - since_s
        self._at[thread] = side, now_s
        return side


PART_S = 0.1
"""Seconds between two parts."""
LOOK_AGAIN_S = 2e-3
"""Polling period of a side that leaves the last tasks to the other side."""

Permits = Mapping[DeviceKind, threading.Semaphore]


@final
class LeaseQueue(TaskQueue):
    """The tasks of one lease, for the lanes of its node.

    After the time limit no new tasks are taken; the processors still do the tasks that a GPU failed at
    permanently, so that every lease makes progress.

    Parameters
    ----------
    workers
        Tasks that the node's processors run at once.
    permits
        How many threads of each side may be at work, for all leases together.
    gpu
        Name of the GPU that takes part; None: the processors do everything, from the first task on.
    rates
        Rates of both sides, where a GPU takes part; None: to be measured.
    """

    def __init__(
        self,
        lease: Lease,
        function: Callable[[Any], Any],
        workers: int,
        permits: Permits,
        gpu: str | None = None,
        rates: DeviceRates | None = None,
    ) -> None:
        self._results = ResultBuffer(workers, gpu, apart=lease.alone or not lease.reruns)
        options = QueueOptions(lease.retry, lease.reruns, lease.memory_per_task)
        super().__init__(function, Telemetry([self._results]), options)
        self.shared = gpu is not None
        self._lease = lease
        self._tasks = unpack_tasks(lease)
        self._permits = permits
        self._in_flight = InFlightLog(lease.id, workers + self.shared)
        self._dispatcher = Dispatcher(
            RangeQueue(len(self._tasks), None if self.shared else 0),
            balancer=LoadBalancer(rates, time.monotonic()) if self.shared else None,
        )
        self._left = len(self._tasks)
        """Number of tasks that are to come to an end here, and have not."""
        self._side_of_thread: dict[int, DeviceKind] = {}
        self._until_s: float | None = None
        self._late = False
        self._stopped = False
        self._ended = False
        self._error: BaseException | None = None

    @property
    def stopped(self) -> bool:
        """Whether no further task should be begun."""
        return self._stopped

    @property
    def remaining(self) -> int:
        """How many tasks nobody has taken."""
        return len(self._dispatcher.pending)

    @property
    def left(self) -> int:
        """How many tasks are to come to an end here, and have not."""
        return self._left

    def take(self, side: DeviceKind, count: int, *, wait: bool = True) -> TaskRange | None:
        """Return up to ``count`` tasks; None when there are no more, or the time is over."""
        self._release_range()
        while not self._is_drained():
            if not self._permits[side].acquire(timeout=PART_S):
                continue
            with self._turn:
                offer = self._offer(side, count)
                if offer.found is not None:
                    return self._begin_range(side, *offer.found)
                self._permits[side].release()
                if not (offer.more and wait):
                    return None
                self._turn.wait(LOOK_AGAIN_S if offer.held else PART_S)
        return None

    def finish(self, start: int, outputs: Sequence[Any], device: str | None = None) -> None:
        """Keep outputs for the next part."""
        if device is not None:
            self.telemetry.count_tasks(device, len(outputs))
        self._results.put(start, outputs)
        with self._turn:
            proven = self._confirmed_suspicions(start, len(outputs))
            self._settle(len(outputs))
        self._report_faults(proven)

    def fail(self, index: int, error: BaseException, device: str) -> None:
        """Keep what the user's function raised for the next part."""
        self._results.put(index, [pack_error(error)])
        with self._turn:
            self._attribution.refuted(index)
            self._settle(1)

    def give_back(self, piece: TaskRange) -> None:
        """Return tasks that were not begun: to both sides, or to the scheduler when the lease is to end."""
        with self._turn:
            if self._late or self._stopped:
                self._settle(len(piece.tasks))
            else:
                self._dispatcher.requeue(threading.get_ident(), *self._local_range(piece))
                self._turn.notify_all()

    def give_up_gpu(self, device: str, error: Exception) -> None:
        """Let the processors take whatever they ask for; the calling thread has nothing in hand."""
        self._release_range()
        with self._turn:
            self._dispatcher.give_up_gpu()
            self._turn.notify_all()

    def abort(self, error: BaseException) -> None:
        """End the lease with ``error``, raised by the calling thread's range."""
        self._release_range()
        with self._turn:
            self._error = error
        self.stop()

    def stop(self) -> None:
        """Begin nothing more."""
        with self._turn:
            self._stopped = True
            self._turn.notify_all()

    def end(self) -> None:
        """Note that no thread works on the lease any more, and remove its log."""
        try:
            self._in_flight.close()
        finally:
            with self._turn:
                self._ended = True
                self._turn.notify_all()

    def parts(self) -> Iterator[LeasePart]:
        """Yield what is done, every tenth of a second, until the lease is over."""
        ended = False
        while not ended:
            with self._turn:
                ended = self._turn.wait_for(lambda: self._ended, PART_S)
            part = self._results.part(last=ended and self._error is None)
            if part is not None:
                yield part
        if self._error is not None:
            raise self._error

    def _requeue_for_cpu(
        self,
        piece: TaskRange,
        failure: tuple[str, Exception],
        suspicion: Suspicion | None,
        *,
        permanent: bool,
    ) -> int:
        if self._stopped or (self._late and not permanent):
            self._settle(len(piece.tasks))
        else:
            taker = threading.get_ident()
            self._dispatcher.requeue(taker, *self._local_range(piece), left=True, permanent=permanent)
            if suspicion is not None:
                self._attribution.hold(piece.start, piece.stop, suspicion)
        return len(piece.tasks)

    def _is_over(self) -> bool:
        return self._stopped or not self._left

    def _is_drained(self) -> bool:
        """Return whether no thread will find a task to take any more."""
        with self._turn:
            self._apply_time_limit()
            return self._is_over() or not (self.shared or len(self._dispatcher.pending))

    def _apply_time_limit(self) -> None:
        """Once the time limit is over, leave the tasks not taken to the scheduler."""
        if self._late or self._until_s is None or time.monotonic() < self._until_s:
            return
        self._late = True
        side = DeviceKind.GPU if self.shared else DeviceKind.CPU
        while (found := self._dispatcher.pending.take(side, len(self._tasks))) is not None:
            self._settle(found[1] - found[0])

    def _offer(self, side: DeviceKind, count: int) -> Offer:
        self._apply_time_limit()
        if self._stopped:
            return Offer(None, more=False, held=False)
        count = 1 if self._lease.alone else count
        taker, now_s = threading.get_ident(), time.monotonic()
        offer = self._dispatcher.offer(side, taker, count, self._left, now_s, lambda index: False)
        return offer if self.shared else offer._replace(more=False)

    def _begin_range(self, side: DeviceKind, start: int, stop: int) -> TaskRange:
        """Return the range that the calling thread has taken, logged as in flight."""
        if self._until_s is None:
            self._until_s = time.monotonic() + self._lease.limit_s
        piece = TaskRange(self._lease.start + start, self._tasks[start:stop])
        self._in_flight.begin(piece.start, piece.stop)
        self._side_of_thread[threading.get_ident()] = side
        self._results.begin(side)
        return piece

    def _release_range(self) -> None:
        """End the calling thread's range, and release its permit."""
        with self._turn:
            side = self._side_of_thread.pop(threading.get_ident(), None)
            if side is None:
                return
            self._results.end()
            self._in_flight.end()
        self._permits[side].release()

    def _settle(self, count: int) -> None:
        self._left -= count
        if self._left <= 0:
            self._turn.notify_all()

    def _local_range(self, piece: TaskRange) -> tuple[int, int]:
        return piece.start - self._lease.start, piece.stop - self._lease.start
