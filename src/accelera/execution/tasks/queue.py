"""Queue of task ranges that CPU and GPU lanes take from: the contract between a batch and its executors."""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, final

from accelera.execution.arguments import Retry
from accelera.execution.observability.telemetry import Telemetry
from accelera.execution.strategy.memory_limit import ConcurrencyLimit


class DeviceKind(enum.Enum):
    """Who takes tasks."""

    CPU = "cpu"
    GPU = "gpu"


class TaskRange(NamedTuple):
    """Tasks that follow one another."""

    start: int
    """Index of the first."""
    tasks: Sequence[Any]

    @property
    def stop(self) -> int:
        """Index after the last."""
        return self.start + len(self.tasks)

    def part(self, begin: int, end: int) -> TaskRange:
        """Return the tasks from ``begin`` up to ``end``, counted within this piece."""
        return TaskRange(self.start + begin, self.tasks[begin:end])


class Suspicion(NamedTuple):
    """What is held against a device."""

    error: Exception
    device: str
    blame: Callable[[], None]
    """Called when the CPU can do what the device could not."""


@final
class FaultAttribution:
    """Open questions by index of the task. Not thread-safe."""

    def __init__(self) -> None:
        self._of: dict[int, Suspicion] = {}

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._of)

    def hold(self, start: int, stop: int, suspicion: Suspicion) -> None:
        """Note what happened to the tasks from ``start`` up to ``stop``."""
        self._of.update(dict.fromkeys(range(start, stop), suspicion))

    def confirmed(self, start: int, count: int) -> list[Suspicion]:
        """Return, once, what was held against devices for ``count`` tasks from ``start`` on."""
        return [self._of.pop(index) for index in range(start, start + count) if index in self._of]

    def refuted(self, index: int) -> None:
        """Drop what was held: the CPU could not do the task either."""
        self._of.pop(index, None)


class Joinable(Protocol):
    """Somebody at work: a thread, or what one does once."""

    def join(self, timeout: float | None = None) -> None:
        """Wait until it is over, or for so many seconds."""

    def is_alive(self) -> bool:
        """Whether it is not over."""


class TaskQueue(Protocol):
    """A batch of independent tasks that several sides carry out together.

    Every method may be called from any thread. A piece that was taken must be finished, failed, left to the
    CPU or given back, task by task or as a whole; only then is the batch over. Whoever takes for the CPU goes
    on until there is nothing; whoever takes for the GPU may stop after ``give_up_gpu``.
    """

    function: Callable[[Any], Any]
    """The user's function of one task."""
    retry: Retry | None
    """When a task that raised is tried again."""
    memory_per_task: int
    """Bytes that a task takes on the device; 0: not known."""
    room: ConcurrencyLimit
    """How many tasks each side may be at, at once, for the sake of memory."""
    reruns: bool
    """Whether a task whose attempt was lost may be begun again."""
    watch: Telemetry
    """Hears of everything that happens."""

    @property
    def stopped(self) -> bool:
        """Whether no further task should be begun."""

    @property
    def shared(self) -> bool:
        """Whether CPU and GPU take from the same tasks."""

    @property
    def repairs(self) -> bool:
        """Whether a device that fails is given another chance before the CPU takes over."""

    @property
    def remaining(self) -> int:
        """How many tasks nobody has taken yet; for a stream of unknown length, a large number."""

    @property
    def left(self) -> int:
        """How many tasks are not over, taken or not; for a stream of unknown length, a large number."""

    def take(self, side: DeviceKind, count: int, *, wait: bool = True) -> TaskRange | None:
        """Return up to ``count`` tasks; None when nothing is left for this side.

        Waits while there is nothing to take, but what others have may yet come back; for the CPU that is so
        until the batch is over. Without ``wait`` it returns None then, for whoever has other pieces on their
        way.
        """

    def rest(self, seconds: float) -> bool:
        """Wait so long, or until the batch is over; return whether it is over."""

    def finish(self, start: int, outputs: Sequence[Any]) -> None:
        """Bring the outputs of the tasks from index ``start`` on; those that are there already stay."""

    def fail(self, index: int, error: BaseException, device: str) -> None:
        """Tell that the user's function raised ``error`` on a task, which is not to be tried again."""

    def give_back(self, piece: TaskRange) -> None:
        """Return tasks that were not begun, for whichever side comes first."""

    def leave_to_cpu(
        self,
        piece: TaskRange,
        error: Exception,
        device: str,
        blame: Callable[[], None] | None = None,
        *,
        for_good: bool = True,
    ) -> None:
        """Return tasks that cannot be done on the GPU, and why.

        With ``blame`` the device may not be at fault: it is called for every task that the CPU can do, and
        only these count as fallen back. Not ``for_good``: the GPU may have some again, should it recover.
        """

    def give_up_gpu(self, device: str, error: Exception) -> None:
        """Let both have what was kept for the GPU, which is left alone for now, and why."""

    def break_down(self, error: BaseException) -> None:
        """Tell that an executor itself failed, and nobody can take its place."""

    def wait(self, threads: Sequence[Joinable]) -> None:
        """Return when the batch is over and ``threads`` have ended, or may be left behind."""


class CpuOnlyWork(abc.ABC):
    """What ``Work`` asks about GPUs, answered where there is none."""

    @abc.abstractmethod
    def give_back(self, piece: TaskRange) -> None:
        """Return tasks that were not begun."""

    def leave_to_cpu(
        self,
        piece: TaskRange,
        error: Exception,
        device: str,
        blame: Callable[[], None] | None = None,
        *,
        for_good: bool = True,
    ) -> None:
        """Return tasks that cannot be done on a GPU."""
        self.give_back(piece)

    def give_up_gpu(self, device: str, error: Exception) -> None:
        """Do nothing: nothing is kept for a GPU."""
