"""Batch of tasks: a list that several lanes carry out together, with its outputs and failures."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, final

from accelera.execution.arguments import Fallback, Retry
from accelera.execution.observability.telemetry import Telemetry
from accelera.execution.result import TaskFailure
from accelera.execution.strategy.memory_limit import UNLIMITED, ConcurrencyLimit
from accelera.execution.strategy.rates import DeviceRates
from accelera.execution.tasks.balance import BackupTasks, Dispatcher, LoadBalancer
from accelera.execution.tasks.queue import DeviceKind, FaultAttribution, Joinable, Suspicion, TaskRange
from accelera.execution.tasks.ranges import RangeQueue

_LOGGER = logging.getLogger("accelera.execution")


@final
class ProgressCallback:
    """Tells a callback how many tasks are done: one call at a time, never fewer than the time before.

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
        self._told = 0
        self._lock = threading.Lock()

    def tell(self, done: int) -> None:
        """Say that ``done`` tasks are done, unless more were told already."""
        with self._lock:
            if self._callback is None or done <= self._told:
                return
            self._told = done
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
"""A side that leaves the last tasks to the other looks so often whether they are being done."""
TOKEN_S = 0.05
"""Whoever waits for a batch looks so often whether its token was set: an event cannot tell by itself."""
GRACE_S = 0.5
"""Pieces under way when the token is set have so long to end; processes are killed within it."""


def nobody() -> None:
    """Stand for a CPU that need not be called."""


@final
class Batch:
    """A list of tasks that several sides carry out together; see ``Work``.

    Parameters
    ----------
    tasks
        The tasks, in their order.
    function
        The user's function of one task.
    watch
        Hears of everything that happens.
    outputs
        Of the first tasks, if they are done already.
    failure
        Of the task after these, if it has failed already.
    gpu_count
        The first so many tasks are the GPU's, the others the CPU's; None: whoever comes first.
    stop_on_error
        Whether the first task that fails for good ends the batch.
    pace
        How fast both sides are, where they share the tasks; None: found out.
    repeat
        Whether a side that has nothing left takes over tasks that another is late with.
    reruns
        Whether a task whose attempt was lost may be begun again.
    memory_per_task
        Bytes that a task takes on the device; 0: not known.
    room
        How many tasks each side may be at, at once.
    fallback
        ``"unfinished"``: the CPU does what a failing GPU leaves; ``"all"``: it does everything again;
        ``"never"``: the batch fails with the GPU.
    deadline_s
        When to stop, as ``time.monotonic`` tells it; tasks under way are left behind then. None: never.
    cancel
        Stops the batch when it is set; tasks that do not end soon are left behind then.
    progress
        Called with the number of tasks done and of all, whenever some are done.
    call_cpu
        Called, from any thread and maybe often, when there is something that only the CPU can do.
    """

    def __init__(
        self,
        tasks: Sequence[Any],
        function: Callable[[Any], Any],
        watch: Telemetry,
        *,
        outputs: Sequence[Any] = (),
        failure: TaskFailure | None = None,
        gpu_count: int | None = 0,
        retry: Retry | None = None,
        stop_on_error: bool = True,
        pace: DeviceRates | None = None,
        repeat: bool = False,
        reruns: bool = True,
        memory_per_task: int = 0,
        room: ConcurrencyLimit = UNLIMITED,
        fallback: Fallback = "unfinished",
        deadline_s: float | None = None,
        cancel: threading.Event | None = None,
        progress: Callable[[int, int], None] | None = None,
        call_cpu: Callable[[], None] = nobody,
    ) -> None:
        self.function = function
        self.retry = retry
        self.reruns = reruns
        self.watch = watch
        self.memory_per_task = memory_per_task
        self.room = room
        self.shared = gpu_count is None
        self.repairs = fallback == "unfinished"
        self.broken: BaseException | None = None
        """What ended the batch although no task is to blame."""
        self.outputs: list[Any] = [MISSING] * len(tasks)
        self.outputs[: len(outputs)] = outputs
        self.failures: dict[int, TaskFailure] = {}
        self.stopped_by: str | None = None
        """``"error"``, ``"device"``, ``"cancelled"``, ``"timeout"`` …; None unless stopped.

        ``"left"`` tells that the executors returned although something was left.
        """
        self.over = threading.Event()
        """Set when every task is settled, or the batch was stopped."""
        self._tasks = tasks
        self._left = len(tasks) - len(outputs)
        self._sharing = Dispatcher(
            RangeQueue(len(tasks), gpu_count, first=len(outputs) + (failure is not None)),
            BackupTasks() if repeat else None,
            LoadBalancer(pace, time.monotonic()) if self.shared else None,
        )
        self._stop_on_error = stop_on_error
        self._fallback = fallback
        self._repeats = repeat
        self.leaves_behind = repeat or deadline_s is not None or cancel is not None
        """Whether the batch may be over while a thread is still at a task whose outcome nobody waits for."""
        self._deadline_s = deadline_s
        self._cancel = cancel
        self._cancelled_s: float | None = None
        self._progress = None if progress is None else ProgressCallback(progress, len(tasks))
        self.call_cpu = call_cpu
        self._suspicions = FaultAttribution()
        self._failing: tuple[str, Exception] | None = None
        self._closed = False
        self._turn = threading.Condition(threading.Lock())
        if not self._left:
            self.over.set()
        if failure is not None:
            self.fail(failure.index, failure.error, failure.device)

    @property
    def stopped(self) -> bool:
        """Whether no further task should be begun."""
        if self.stopped_by is None and self._is_to_stop():
            with self._turn:
                self._is_over()
        return self.stopped_by is not None

    @property
    def remaining(self) -> int:
        """How many tasks nobody has taken."""
        return len(self._sharing.pending)

    @property
    def left(self) -> int:
        """How many tasks are neither done nor failed."""
        return self._left

    def take(self, side: DeviceKind, count: int, *, wait: bool = True) -> TaskRange | None:
        """Return up to ``count`` tasks; None when nothing is left for this side, or now without ``wait``."""
        with self._turn:
            while not self._is_over():
                offer = self._sharing.offer(
                    side, threading.get_ident(), count, self._left, time.monotonic(), self._settled
                )
                if offer.found is not None:
                    if self._repeats:
                        self._turn.notify_all()
                    return TaskRange(offer.found[0], self._tasks[slice(*offer.found)])
                if not (offer.more and wait):
                    return None
                self._turn.wait(self._patience_s(offer.held))
            return None

    def finish(self, start: int, outputs: Sequence[Any]) -> None:
        """Bring the outputs of the tasks from index ``start`` on; those that are there already stay."""
        with self._turn:
            if self._closed:
                return
            if not self._repeats:
                self.outputs[start : start + len(outputs)] = outputs
                self._left -= len(outputs)
            else:
                for index, output in enumerate(outputs, start):
                    if not self._settled(index):
                        self.outputs[index] = output
                        self._left -= 1
                self._sharing.done(start, start + len(outputs))
            proven = self._suspicions.confirmed(start, len(outputs)) if self._suspicions else ()
            done = self._settle()
        for error, device, blame in proven:
            self.watch.fell_back(device, 1, error)
            blame()
        if self._progress is not None:
            self._progress.tell(done)

    def fail(self, index: int, error: BaseException, device: str) -> None:
        """Tell that the user's function raised ``error`` on a task, which is not to be tried again."""
        with self._turn:
            if self._closed or self._settled(index):
                return
            self.failures[index] = TaskFailure(index, error, device)
            self.watch.count_failed(device)
            self._left -= 1
            self._sharing.done(index, index + 1)
            self._suspicions.refuted(index)
            if self._stop_on_error:
                self._stop("error")
            done = self._settle()
        self.watch.tell_failed(device)
        if self._progress is not None:
            self._progress.tell(done)

    def give_back(self, piece: TaskRange) -> None:
        """Return tasks that were not begun, for whichever side comes first."""
        with self._turn:
            for start, stop in self._unsettled(piece):
                self._sharing.back(start, stop)
            self._turn.notify_all()

    def leave_to_cpu(
        self,
        piece: TaskRange,
        error: Exception,
        device: str,
        blame: Callable[[], None] | None = None,
        *,
        for_good: bool = True,
    ) -> None:
        """Return tasks that cannot be done on the GPU, and why."""
        with self._turn:
            left = self._unsettled(piece)
            if self._closed or not left:
                return
            if self._fallback != "unfinished":
                self._give_in(error, "device")
            for start, stop in left:
                self._sharing.back(start, stop, left=True, for_good=for_good)
                if blame is not None:
                    self._suspicions.hold(start, stop, Suspicion(error, device, blame))
            count = sum(stop - start for start, stop in left)
            if blame is None:
                count += self._fails(device, error)
            self._turn.notify_all()
        if blame is None and self._fallback != "never":
            self.watch.fell_back(device, count, error)
        if self.repairs:
            self.call_cpu()

    def give_up_gpu(self, device: str, error: Exception) -> None:
        """Let both have what was kept for the GPU, which is left alone for now."""
        with self._turn:
            count = self._sharing.give_up_gpu()
            if self._closed or self.over.is_set():
                return
            if count and self._fallback != "unfinished":
                self._give_in(error, "device")
            count += self._fails(device, error)
            self._turn.notify_all()
        if count and self._fallback != "never":
            self.watch.fell_back(device, count, error)
        if self.repairs:
            self.call_cpu()

    def break_down(self, error: BaseException) -> None:
        """Tell that an executor itself failed, and nobody can take its place."""
        with self._turn:
            self._give_in(error, "broken")

    def wait(self, threads: Sequence[Joinable]) -> None:
        """Return when the batch is over and ``threads`` have ended, or may be left behind."""
        if not self.leaves_behind:
            for thread in threads:
                thread.join()
            return
        while not self.over.wait(self._patience_s(held=False)):
            with self._turn:
                self._is_over()
        for thread in threads:
            while thread.is_alive() and not self._leaves_behind_now():
                thread.join(TOKEN_S)

    def rest(self, seconds: float) -> bool:
        """Wait so long, or until the batch is over; return whether it is over."""
        left_s = self._left_s()
        self.over.wait(seconds if left_s is None else min(seconds, left_s))
        with self._turn:
            return self._is_over()

    def stop(self, reason: str) -> None:
        """Begin no further task."""
        with self._turn:
            self._stop(reason)

    def close(self) -> None:
        """Let nothing change any more, whatever those who are late may still bring."""
        with self._turn:
            self._closed = True
            self._stop("left")
            done = len(self.outputs) - self._left
            failing, self._failing = self._failing, None
            more = 0 if failing is None else self._sharing.taken_over()
        if failing is not None and more and self.repairs:
            self.watch.fell_back(failing[0], more, failing[1])
        if self._progress is not None:
            self._progress.close(done)

    def _fails(self, device: str, error: Exception) -> int:
        """Note that the GPU fails; return how many tasks that it gave back the CPU has taken meanwhile."""
        self._failing = device, error
        return self._sharing.taken_over()

    def _is_over(self) -> bool:
        reason = self._is_to_stop()
        if reason is not None:
            self._stop(reason)
        return self.over.is_set()

    def _is_to_stop(self) -> str | None:
        """Return why nothing more should be begun, as the clock and the caller have it."""
        if self._cancel is not None and self._cancel.is_set():
            return "cancelled"
        if self._deadline_s is not None and time.monotonic() >= self._deadline_s:
            return "timeout"
        return None

    def _leaves_behind_now(self) -> bool:
        """Whether nobody waits any longer for who is still at a task of a batch that is over."""
        if self._cancel is not None and self._cancel.is_set():
            now_s = time.monotonic()
            self._cancelled_s = now_s if self._cancelled_s is None else self._cancelled_s
            return now_s - self._cancelled_s >= GRACE_S
        if self.stopped_by is None:
            return self._repeats or self._left_s() == 0.0
        return self._repeats or self._deadline_s is not None

    def _left_s(self) -> float | None:
        if self._deadline_s is None:
            return None
        return min(max(0.0, self._deadline_s - time.monotonic()), threading.TIMEOUT_MAX)

    def _patience_s(self, held: bool) -> float | None:
        """Return after how long to look again, while waiting; ``held``: for tasks that the other may take."""
        looks_s = LOOK_AGAIN_S if held else None if self._cancel is None else TOKEN_S
        left_s = self._left_s()
        return looks_s if left_s is None else left_s if looks_s is None else min(left_s, looks_s)

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

    def _give_in(self, error: BaseException, reason: str) -> None:
        """Let the batch fail, unless it has come to an end before."""
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
