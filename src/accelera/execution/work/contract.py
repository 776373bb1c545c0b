"""What executors see of a batch of work: they take pieces and bring outcomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from accelera.execution.retry import Retry
from accelera.execution.watching.watch import Watch
from accelera.execution.work.pieces import Piece, Side
from accelera.execution.work.room import Room


class Running(Protocol):
    """Somebody at work: a thread, or what one does once."""

    def join(self, timeout: float | None = None) -> None:
        """Wait until it is over, or for so many seconds."""

    def is_alive(self) -> bool:
        """Whether it is not over."""


class Work(Protocol):
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
    room: Room
    """How many tasks each side may be at, at once, for the sake of memory."""
    reruns: bool
    """Whether a task whose attempt was lost may be begun again."""
    watch: Watch
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

    def take(self, side: Side, count: int, *, wait: bool = True) -> Piece | None:
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

    def give_back(self, piece: Piece) -> None:
        """Return tasks that were not begun, for whichever side comes first."""

    def leave_to_cpu(
        self,
        piece: Piece,
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

    def wait(self, threads: Sequence[Running]) -> None:
        """Return when the batch is over and ``threads`` have ended, or may be left behind."""
