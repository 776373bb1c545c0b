"""Batch of tasks: a list that several lanes carry out together, with its outputs and failures."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

from accelera.execution.arguments import Fallback
from accelera.execution.observability.telemetry import Telemetry
from accelera.execution.result import TaskFailure
from accelera.execution.strategy.rates import DeviceRates
from accelera.execution.tasks.balance import BackupTasks, Dispatcher, LoadBalancer, RangeQueue
from accelera.execution.tasks.queue import (
    GRACE_S,
    TOKEN_S,
    DeviceKind,
    Joinable,
    QueueOptions,
    Suspicion,
    TaskQueue,
    TaskRange,
)

_LOGGER = logging.getLogger("accelera.execution")


@final
class ProgressCallback:
    """Tells a callback how many tasks are done: one call at a time, each with a larger number.

    What the callback raises is logged and forgotten: it is not the work's.

    Parameters
    ----------
    callback
        Called with the number of tasks done and of all.
    total
        The number of all.
    """

    def __init__(self, callback: Callable[[int, int], None], total: int) -> None:
        self._callback: Callable[[int, int], None] | None = callback
        self._total = total
        self._reported = 0
        self._lock = threading.Lock()

    def tell(self, done: int) -> None:
        """Say that ``done`` tasks are done, unless more were reported already."""
        with self._lock:
            if self._callback is None or done <= self._reported:
                return
            self._reported = done
            try:
                self._callback(done, self._total)
            except Exception:
                _LOGGER.exception("progress=%r raised; the work goes on", self._callback)

    def close(self, done: int) -> None:
        """Say that ``done`` tasks are done, and nothing more."""
        self.tell(done)
        with self._lock:
            self._callback = None


@final
class _Missing:
    def __repr__(self) -> str:
        return "<missing>"


MISSING = _Missing()
"""Stands for the output of a task that is not done."""
LOOK_AGAIN_S = 2e-3
"""Polling period of a side that leaves the last tasks to the other side."""


@final
@dataclass(frozen=True, slots=True)
class BatchOptions(QueueOptions):
    """Options of one batch."""

    gpu_count: int | None = 0
    """The first so many tasks are the GPU's, the others the CPU's; None: both take from all of them."""
    rates: DeviceRates | None = None
    """Rates of both sides, where they share the tasks; None: to be measured."""
    repeat: bool = False
    """Whether an idle side runs backup copies of tasks that the other side is late with (stragglers)."""
    stop_on_error: bool = True
    """Whether the first task that fails for good ends the batch."""
    fallback: Fallback = "unfinished"
    """``"unfinished"``: the CPU does what a failing GPU leaves; ``"all"``: it does everything again;
    ``"never"``: the batch fails with the GPU."""
    progress: Callable[[int, int], None] | None = None
    """Called with the number of tasks done and of all, whenever some are done."""


@final
class Batch(TaskQueue):
    """A list of tasks that several lanes carry out together.

    Parameters
    ----------
    tasks
        The tasks, in their order.
    function
        The user's function of one task.
    telemetry
        Counts everything that happens, and tells observers.
    options
        See ``BatchOptions``.
    outputs
        Of the first tasks, if they are done already.
    failure
        Of the task after these, if it has failed already.
    """

    def __init__(
        self,
        tasks: Sequence[Any],
        function: Callable[[Any], Any],
        telemetry: Telemetry,
        options: BatchOptions | None = None,
        *,
        outputs: Sequence[Any] = (),
        failure: TaskFailure | None = None,
    ) -> None:
        options = BatchOptions() if options is None else options
        super().__init__(function, telemetry, options)
        self.shared = options.gpu_count is None
        self.fallback = options.fallback
        self.repairs = options.fallback == "unfinished"
        self.redoes_all = options.fallback == "all"
        self.broken: BaseException | None = None
        """The error that ended the batch although no task is to blame."""
        self.outputs: list[Any] = [MISSING] * len(tasks)
        self.outputs[: len(outputs)] = outputs
        self.failures: dict[int, TaskFailure] = {}
        self.stopped_by: str | None = None
        """``"error"``, ``"device"``, ``"cancelled"``, ``"timeout"`` …; None unless stopped.

        ``"left"``: the executors returned although something was left.
        """
        self.over = threading.Event()
        """Set when every task is settled, or the batch was stopped."""
        self.may_abandon_threads = (
            options.repeat or options.deadline_s is not None or options.cancel is not None
        )
        """Whether the batch may end while a thread still runs a task that nobody waits for."""
        self._tasks = tasks
        self._left = len(tasks) - len(outputs)
        self._dispatcher = Dispatcher(
            RangeQueue(len(tasks), options.gpu_count, first=len(outputs) + (failure is not None)),
            BackupTasks() if options.repeat else None,
            LoadBalancer(options.rates, time.monotonic()) if self.shared else None,
        )
        self._stop_on_error = options.stop_on_error
        self._repeats = options.repeat
        self._cancelled_s: float | None = None
        self._progress = None if options.progress is None else ProgressCallback(options.progress, len(tasks))
        self._gpu_failure: tuple[str, Exception] | None = None
        self._closed = False
        if not self._left:
            self.over.set()
        if failure is not None:
            self.fail(failure.index, failure.error, failure.device)

    @property
    def stopped(self) -> bool:
        """Whether no further task should be begun."""
        if self.stopped_by is None and self._stop_reason():
            with self._turn:
                self._is_over()
        return self.stopped_by is not None

    @property
    def remaining(self) -> int:
        """How many tasks nobody has taken."""
        return len(self._dispatcher.pending)

    @property
    def left(self) -> int:
        """How many tasks are neither done nor failed."""
        return self._left

    def take(self, side: DeviceKind, count: int, *, wait: bool = True) -> TaskRange | None:
        """Return up to ``count`` tasks; None when nothing is left for this side, or now without ``wait``."""
        with self._turn:
            while not self._is_over():
                offer = self._dispatcher.offer(
                    side, threading.get_ident(), count, self._left, time.monotonic(), self._settled
                )
                if offer.found is not None:
                    if self._repeats:
                        self._turn.notify_all()
                    return TaskRange(offer.found[0], self._tasks[slice(*offer.found)])
                if not (offer.more and wait):
                    return None
                self._turn.wait(self._wait_timeout_s(LOOK_AGAIN_S if offer.held else None))
            return None

    def finish(self, start: int, outputs: Sequence[Any], device: str | None = None) -> None:
        """Bring the outputs of the tasks from index ``start`` on; those that are there already stay."""
        with self._turn:
            if self._closed:
                return
            if device is not None:
                self.telemetry.count_tasks(device, len(outputs))
            if not self._repeats:
                self.outputs[start : start + len(outputs)] = outputs
                self._left -= len(outputs)
            else:
                for index, output in enumerate(outputs, start):
                    if not self._settled(index):
                        self.outputs[index] = output
                        self._left -= 1
                self._dispatcher.done(start, start + len(outputs))
            proven = self._confirmed_suspicions(start, len(outputs))
            done = self._settle()
        self._report_faults(proven)
        if self._progress is not None:
            self._progress.tell(done)

    def fail(self, index: int, error: BaseException, device: str) -> None:
        """Tell that the user's function raised ``error`` on a task, which is not to be tried again."""
        with self._turn:
            if self._closed or self._settled(index):
                return
            self.failures[index] = TaskFailure(index, error, device)
            self.telemetry.count_tasks(device, 1)
            self._left -= 1
            self._dispatcher.done(index, index + 1)
            self._attribution.refuted(index)
            if self._stop_on_error:
                self._stop("error")
            done = self._settle()
        self.telemetry.tell_failed(device)
        if self._progress is not None:
            self._progress.tell(done)

    def give_back(self, piece: TaskRange) -> None:
        """Return tasks that were not begun, for whichever side comes first."""
        with self._turn:
            for start, stop in self._unsettled(piece):
                self._dispatcher.requeue(threading.get_ident(), start, stop)
            self._turn.notify_all()

    def give_up_gpu(self, device: str, error: Exception) -> None:
        """Open the GPU's share to both sides: the GPU is not used for now."""
        with self._turn:
            count = self._dispatcher.give_up_gpu()
            if self._closed or self.over.is_set():
                return
            if count and self.fallback != "unfinished":
                self._fail_batch(error, "device")
            count += self._note_gpu_failure(device, error)
            self._turn.notify_all()
        if count and self.fallback != "never":
            self.telemetry.fell_back(device, count, error)
        if self.repairs:
            self.request_cpu_lane()

    def abort(self, error: BaseException) -> None:
        """Tell that an executor itself failed, and nobody can take its place."""
        with self._turn:
            self._fail_batch(error, "broken")

    def wait(self, threads: Sequence[Joinable]) -> None:
        """Return when the batch is over and ``threads`` have ended, or may be left behind."""
        if not self.may_abandon_threads:
            for thread in threads:
                thread.join()
            return
        while not self.over.wait(self._wait_timeout_s()):
            with self._turn:
                self._is_over()
        for thread in threads:
            while thread.is_alive() and not self._may_abandon_now():
                thread.join(TOKEN_S)

    def sleep(self, seconds: float) -> bool:
        """Wait so long, or until the batch is over; return whether it is over."""
        left_s = self._time_left_s()
        self.over.wait(seconds if left_s is None else min(seconds, left_s))
        with self._turn:
            return self._is_over()

    def stop(self, reason: str) -> None:
        """Begin no further task."""
        with self._turn:
            self._stop(reason)

    def close(self) -> None:
        """Freeze the batch: later results of abandoned threads are ignored."""
        with self._turn:
            self._closed = True
            self._stop("left")
            done = len(self.outputs) - self._left
            failing, self._gpu_failure = self._gpu_failure, None
            more = 0 if failing is None else self._dispatcher.taken_over()
        if failing is not None and more and self.repairs:
            self.telemetry.fell_back(failing[0], more, failing[1])
        if self._progress is not None:
            self._progress.close(done)

    def _note_gpu_failure(self, device: str, error: Exception) -> int:
        """Record a failure of the GPU; return how many of the tasks it gave back the CPU has taken since."""
        self._gpu_failure = device, error
        return self._dispatcher.taken_over()

    def _is_over(self) -> bool:
        reason = self._stop_reason()
        if reason is not None:
            self._stop(reason)
        return self.over.is_set()

    def _stop_reason(self) -> str | None:
        """Return ``"cancelled"`` if the token is set, ``"timeout"`` after the deadline, else None."""
        if self._cancel is not None and self._cancel.is_set():
            return "cancelled"
        if self._deadline_s is not None and time.monotonic() >= self._deadline_s:
            return "timeout"
        return None

    def _may_abandon_now(self) -> bool:
        """Return whether threads that still run a task of a finished batch may be abandoned now."""
        if self._cancel is not None and self._cancel.is_set():
            now_s = time.monotonic()
            self._cancelled_s = now_s if self._cancelled_s is None else self._cancelled_s
            return now_s - self._cancelled_s >= GRACE_S
        if self.stopped_by is None:
            return self._repeats or self._time_left_s() == 0.0
        return self._repeats or self._deadline_s is not None

    def _requeue_for_cpu(
        self,
        piece: TaskRange,
        failure: tuple[str, Exception],
        suspicion: Suspicion | None,
        *,
        permanent: bool,
    ) -> int | None:
        left = self._unsettled(piece)
        if self._closed or not left:
            return None
        if self.fallback != "unfinished":
            self._fail_batch(failure[1], "device")
        taker = threading.get_ident()
        for start, stop in left:
            self._dispatcher.requeue(taker, start, stop, left=True, permanent=permanent)
            if suspicion is not None:
                self._attribution.hold(start, stop, suspicion)
        count = sum(stop - start for start, stop in left)
        if suspicion is None:
            count += self._note_gpu_failure(*failure)
        return 0 if self.fallback == "never" else count

    def _unsettled(self, piece: TaskRange) -> list[tuple[int, int]]:
        """Return the parts of ``piece`` that nobody has settled meanwhile."""
        if not self._repeats:
            return [(piece.start, piece.stop)]
        parts: list[tuple[int, int]] = []
        for index in range(piece.start, piece.stop):
            if self._settled(index):
                continue
            if parts and parts[-1][1] == index:
                parts[-1] = (parts[-1][0], index + 1)
            else:
                parts.append((index, index + 1))
        return parts

    def _fail_batch(self, error: BaseException, reason: str) -> None:
        """Fail the batch with ``error``, unless it has ended already."""
        if not self.over.is_set():
            self.broken = error
        self._stop(reason)

    def _settled(self, index: int) -> bool:
        return self.outputs[index] is not MISSING or index in self.failures

    def _settle(self) -> int:
        if not self._left:
            self.over.set()
            self._turn.notify_all()
        return len(self.outputs) - self._left

    def _stop(self, reason: str) -> None:
        if self.stopped_by is None and self._left:
            self.stopped_by = reason
        self.over.set()
        self._turn.notify_all()
