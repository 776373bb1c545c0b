"""Queue of task ranges that CPU and GPU lanes take from: the contract between a batch and its executors."""

from __future__ import annotations

import abc
import enum
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, final

from accelera.execution.observability.telemetry import Telemetry
from accelera.execution.strategy.memory_limit import UNLIMITED, ConcurrencyLimit
from accelera.execution.tasks.retry import Retry

TOKEN_S: Final = 0.05
"""Polling period of the cancel token: a user's event cannot wake threads that wait for something else."""
GRACE_S: Final = 0.5
"""Seconds that tasks under way have to end when the token is set; processes are killed within them."""


class DeviceKind(enum.Enum):
    """The side that takes tasks."""

    CPU = "cpu"
    GPU = "gpu"


class TaskRange(NamedTuple):
    """Consecutive tasks that a lane takes at once."""

    start: int
    """Index of the first."""
    tasks: Sequence[Any]

    @property
    def stop(self) -> int:
        """Index after the last."""
        return self.start + len(self.tasks)

    def part(self, begin: int, end: int) -> TaskRange:
        """Return the tasks from ``begin`` up to ``end``, counted within this range."""
        return TaskRange(self.start + begin, self.tasks[begin:end])


class Suspicion(NamedTuple):
    """A failure on a device that may be the device's fault, or the task's."""

    error: Exception
    device: str
    blame: Callable[[], None]
    """Called when the CPU can do what the device could not."""


@final
class FaultAttribution:
    """Suspicions by index of the task, until the CPU has tried it. Not thread-safe."""

    def __init__(self) -> None:
        self._of: dict[int, Suspicion] = {}

    def __bool__(self) -> bool:
        """Return whether there are any suspicions."""
        return bool(self._of)

    def hold(self, start: int, stop: int, suspicion: Suspicion) -> None:
        """Note what happened to the tasks from ``start`` up to ``stop``."""
        self._of.update(dict.fromkeys(range(start, stop), suspicion))

    def confirmed(self, start: int, count: int) -> list[Suspicion]:
        """Return, once, the suspicions of ``count`` tasks from ``start`` on, which the CPU has done."""
        return [self._of.pop(index) for index in range(start, start + count) if index in self._of]

    def refuted(self, index: int) -> None:
        """Drop the suspicion: the CPU could not do the task either."""
        self._of.pop(index, None)


class Joinable(Protocol):
    """A thread, or one call in a thread of a pool."""

    def join(self, timeout: float | None = None) -> None:
        """Wait until it is over, or for so many seconds."""

    def is_alive(self) -> bool:
        """Return whether it is still running."""


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """Options of the caller that every queue keeps to."""

    retry: Retry | None = None
    """When a task that raised is tried again; None: never."""
    reruns: bool = True
    """Whether a task whose attempt was lost may be begun again."""
    memory_per_task: int = 0
    """Bytes that a task takes on the device; 0: not known."""
    limit: ConcurrencyLimit = UNLIMITED
    """The most tasks that each side may run at once, for the sake of memory."""
    deadline_s: float | None = None
    """When to stop, as ``time.monotonic`` counts; tasks under way are left behind then. None: never."""
    cancel: threading.Event | None = None
    """Stops the work when it is set; tasks that do not end soon are left behind then."""


class TaskQueue(abc.ABC):
    """Independent tasks that several lanes carry out together.

    Every method may be called from any thread. A range that was taken must be finished, failed, left to the
    CPU or given back, task by task or as a whole; only then is the queue over. A CPU lane runs until there is
    nothing to take; a GPU lane may stop after ``give_up_gpu``.
    """

    shared: bool = False
    """Whether CPU and GPU take from the same tasks."""
    repairs: bool = True
    """Whether a device that fails is given another chance before the CPU takes over."""
    redoes_all: bool = False
    """Whether the CPU does the whole batch again after any error of a device or of a form for many tasks."""
    uses_gpu: bool = True
    """Whether a GPU may take part."""

    def __init__(
        self, function: Callable[[Any], Any], telemetry: Telemetry, options: QueueOptions | None = None
    ) -> None:
        options = QueueOptions() if options is None else options
        self.function = function
        """The user's function of one task."""
        self.telemetry = telemetry
        """Counts everything that happens, and tells observers."""
        self.retry = options.retry
        self.reruns = options.reruns
        self.memory_per_task = options.memory_per_task
        self.limit = options.limit
        self.request_cpu_lane: Callable[[], None] = do_nothing
        """Callback for work that only the CPU can do; called from any thread, perhaps many times."""
        self._deadline_s = options.deadline_s
        self._cancel = options.cancel
        self._attribution = FaultAttribution()
        self._lock = threading.Lock()
        self._turn = threading.Condition(self._lock)

    @property
    @abc.abstractmethod
    def stopped(self) -> bool:
        """Whether no further task should be begun."""

    @property
    @abc.abstractmethod
    def remaining(self) -> int:
        """Number of tasks that no lane has taken yet; for a stream of unknown length, a large number."""

    @property
    @abc.abstractmethod
    def left(self) -> int:
        """Number of tasks that are not over, taken or not; for a stream, a large number."""

    @abc.abstractmethod
    def take(self, side: DeviceKind, count: int, *, wait: bool = True) -> TaskRange | None:
        """Return up to ``count`` tasks; None when nothing is left for this side.

        Waits while there is nothing to take, but what others have may yet come back; for the CPU that is so
        until the batch is over. Without ``wait`` it returns None then, for lanes that have other ranges under
        way.
        """

    @abc.abstractmethod
    def finish(self, start: int, outputs: Sequence[Any], device: str | None = None) -> None:
        """Bring the outputs of the tasks from index ``start`` on; those that are there already stay.

        They count for ``device`` if they still come in time; None: they are counted.
        """

    @abc.abstractmethod
    def fail(self, index: int, error: BaseException, device: str) -> None:
        """Bring what the user's function raised on a task that is not to be tried again."""

    @abc.abstractmethod
    def give_back(self, piece: TaskRange) -> None:
        """Return tasks that were not begun, for whichever side comes first."""

    @abc.abstractmethod
    def abort(self, error: BaseException) -> None:
        """End everything with ``error``: an executor itself failed, and none can take its place."""

    def fall_back_to_cpu(
        self,
        piece: TaskRange,
        error: Exception,
        device: str,
        blame: Callable[[], None] | None = None,
        *,
        permanent: bool = True,
    ) -> None:
        """Give back tasks that failed on the GPU with ``error``, for the CPU to do.

        With ``blame`` the task may be at fault instead of the device: ``blame`` is called for every task that
        the CPU can do, and only these count as fallbacks. Without ``permanent`` the GPU may take some of them
        again, should it recover.
        """
        suspicion = None if blame is None else Suspicion(error, device, blame)
        with self._turn:
            count = self._requeue_for_cpu(piece, (device, error), suspicion, permanent=permanent)
            if count is None:
                return
            self._turn.notify_all()
        if blame is None and count:
            self.telemetry.fell_back(device, count, error)
        if self.repairs:
            self.request_cpu_lane()

    def give_up_gpu(self, device: str, error: Exception) -> None:
        """Open the GPU's share to both sides after ``error``: the GPU is not used for now."""

    def sleep(self, seconds: float) -> bool:
        """Wait for so many seconds, or until the queue is over; return whether it is over."""
        with self._turn:
            return self._turn.wait_for(self._is_over, seconds)

    def wait(self, threads: Sequence[Joinable]) -> None:
        """Return when ``threads`` have ended, or may be left behind."""
        for thread in threads:
            thread.join()

    def retry_or_fail(self, index: int, error: BaseException, device: str, attempts: int) -> bool:
        """Return whether a task that raised after ``attempts`` attempts is tried again; otherwise fail it."""
        if self.retry is not None and self.retry.allows(error, attempts):
            self.telemetry.retried(index, error, device)
            return True
        self.fail(index, error, device)
        return False

    def pause(self, attempts: int) -> None:
        """Wait as long as ``retry`` says after so many attempts, or until the queue is over."""
        if self.retry is not None and self.retry.wait_s:
            self.sleep(self.retry.pause_s(attempts))

    @abc.abstractmethod
    def _is_over(self) -> bool:
        """Return whether no task is to be started or waited for any more; the caller holds the lock."""

    @abc.abstractmethod
    def _requeue_for_cpu(
        self,
        piece: TaskRange,
        failure: tuple[str, Exception],
        suspicion: Suspicion | None,
        *,
        permanent: bool,
    ) -> int | None:
        """Requeue tasks that failed on a GPU, and keep the suspicion; the caller holds the lock.

        Returns how many tasks fell back by ``failure``, a device and its error; None: the queue is over.
        """

    def _confirmed_suspicions(self, start: int, count: int) -> Sequence[Suspicion]:
        """Return the suspicions about tasks that the CPU has now done; the caller holds the lock."""
        return self._attribution.confirmed(start, count) if self._attribution else ()

    def _report_faults(self, proven: Sequence[Suspicion]) -> None:
        """Count each confirmed fallback, and report the fault to its device; the caller holds no lock."""
        for error, device, blame in proven:
            self.telemetry.fell_back(device, 1, error)
            blame()

    def _time_left_s(self) -> float | None:
        """Return the seconds until the deadline; None: there is none."""
        if self._deadline_s is None:
            return None
        return min(max(0.0, self._deadline_s - time.monotonic()), threading.TIMEOUT_MAX)

    def _wait_timeout_s(self, looks_s: float | None = None) -> float | None:
        """Return the timeout of a wait: until the deadline, the next poll of the token, or ``looks_s``."""
        if looks_s is None and self._cancel is not None:
            looks_s = TOKEN_S
        left_s = self._time_left_s()
        return looks_s if left_s is None else left_s if looks_s is None else min(left_s, looks_s)


def do_nothing() -> None:
    """Do nothing: the request for a CPU lane where one takes part already."""
