"""Observer of batches and streams of work."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from accelera.errors import ArgumentError
from accelera.execution.arguments import described
from accelera.execution.strategy.strategy import Decision

if TYPE_CHECKING:
    from accelera.execution.result import ExecutionResult, StreamReport


class Observer:
    """Callbacks of batches and streams of work; every method does nothing unless overridden.

    Methods are called from the threads that do the work, several at once, and must not raise: what they raise
    is logged and forgotten. The thread that calls ``execute`` tells of the decision and of the end, so that
    the two belong together in every thread. A stream may end in another thread than it began in: its number
    tells which begin and end belong together.
    """

    def on_device(self, device: str, memory_available: Callable[[], int]) -> None:
        """A manager was made with a GPU, whose free bytes may be asked for at any time."""

    def on_decision(self, decision: Decision, task_count: int) -> None:
        """A strategy was chosen for a batch of ``task_count`` tasks."""

    def on_queue(self, change: int) -> None:
        """So many tasks have begun to wait; below 0: wait no longer, done or not."""

    def on_chunk(self, device: str, task_count: int, seconds: float) -> None:
        """``device`` finished some tasks at once; one that failed comes by itself, with 0 seconds."""

    def on_retry(self, index: int, error: BaseException, device: str) -> None:
        """A task that raised ``error`` is about to be tried again."""

    def on_split(self, device: str, task_count: int, error: BaseException) -> None:
        """``device`` ran out of memory on so many tasks at once, and goes on with fewer."""

    def on_fallback(self, device: str, task_count: int, error: BaseException) -> None:
        """So many tasks that ``device`` was to do go to the CPU instead."""

    def on_breaker(self, device: str, state: str) -> None:
        """The breaker of ``device`` is now ``"open"``, ``"half-open"`` or ``"closed"``."""

    def on_done(self, result: ExecutionResult[Any]) -> None:
        """A batch is over; when it ends with an exception, ``on_failed`` is called instead."""

    def on_failed(self, error: BaseException, fallback_occurred: bool) -> None:
        """A batch ended with ``error``: the user's own, or of a device that nobody could stand in for."""

    def on_stream(self, stream: int, decision: Decision) -> None:
        """A stream begins; no other in this process has the number ``stream``."""

    def on_stream_end(self, stream: int, report: StreamReport) -> None:
        """A stream is over, however it ended."""


def checked_observers(observers: Any) -> tuple[Observer, ...]:
    """Return ``observers`` as a tuple; raise TypeError where one is none."""
    given = tuple(observers) if isinstance(observers, Iterable) else (observers,)
    wrong = [each for each in given if not isinstance(each, Observer)]
    if wrong or not isinstance(observers, Iterable):
        raise ArgumentError(
            f"[StrategyManager] observers={described(observers)}"
            + (f" with {described(wrong[0])}" if wrong and isinstance(observers, Iterable) else "")
            + ": give a list of observers, such as [PrometheusObserver()]; each derives from Observer"
        )
    return given
