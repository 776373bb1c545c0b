"""Results of batches and streams: outputs, failures of tasks, shares of devices, a manager's totals."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar, final

from accelera._result_html import result_html
from accelera.execution.faults.classify import add_note
from accelera.execution.strategy.strategy import Decision, ExecutionStrategy
from accelera.units import format_seconds


@final
@dataclass(frozen=True, slots=True)
class TaskFailure:
    """The user's own exception, and which task it belongs to."""

    index: int
    """Position of the task in the batch."""
    error: BaseException
    """What the function raised, unchanged."""
    device: str
    """Where it ran: ``"cpu"``, ``"cuda:0"`` …"""

    @property
    def note(self) -> str:
        """Text that names the task and its device."""
        return f"task {self.index} on {self.device}"

    def __str__(self) -> str:
        return f"{self.note}: {type(self.error).__name__}: {self.error}"


@final
@dataclass(slots=True)
class DeviceShare:
    """Part of a batch that one device did."""

    tasks: int = 0
    """Tasks that came to an end there, done or failed; one that two devices finished counts for both."""
    batches: int = 0
    """Pieces in which it did so."""
    busy_s: float = 0.0
    """Seconds in which it worked, summed over its threads."""


@final
@dataclass(frozen=True, slots=True)
class ManagerStats:
    """Counts over all batches and streams that are over."""

    executions: int
    """Batches and streams, those that ended with an exception among them."""
    failures: int
    """Those that ended with an exception."""
    fallbacks: int
    """Those in which the CPU did what a GPU was to do and failed at."""
    recent_fallback_rate: float
    """The share of the last 20 that fell back, from 0 to 1."""
    per_device: Mapping[str, DeviceShare]
    """What each device did: tasks, pieces, busy seconds."""

    @property
    def fallback_rate(self) -> float:
        """The share of all that fell back, from 0 to 1."""
        return self.fallbacks / self.executions if self.executions else 0.0


Ending = Literal["exhausted", "closed", "cancelled", "error"]
"""Every task was done; the caller asked for no more; the token was set; an exception went to the caller."""


@final
@dataclass(frozen=True, slots=True)
class StreamReport:
    """Figures of a stream: tasks, places, and how it ended."""

    decision: Decision
    """Where it ran, and why."""
    execution_time: float
    """Seconds since the first output was asked for; what the caller did between outputs included."""
    task_count: int
    """Tasks that are done, those that failed among them."""
    failed_count: int
    """Tasks whose function raised."""
    fallback_occurred: bool
    """Whether the CPU did what a GPU was to do and failed at."""
    device_errors: tuple[BaseException, ...]
    """The first failures of devices, in the order of their time."""
    per_device: Mapping[str, DeviceShare]
    """What each device did."""
    retries: int
    """Attempts after the first, of tasks and of pieces."""
    oom_splits: int
    """How often a GPU ran out of memory and went on with fewer tasks at once."""
    ended_by: Ending | None = None
    """``"exhausted"``: every task was done; ``"closed"``: the caller asked for no more; ``"cancelled"``: the
    token was set; ``"error"``: the caller got an exception; None while it goes on."""
    error: BaseException | None = None
    """What ended it, where that was an exception."""


if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup

Output = TypeVar("Output")


@final
@dataclass(slots=True, repr=False)
class ExecutionResult(Generic[Output]):
    """The outputs of a batch, and how they came about."""

    outputs: list[Output]
    """In the order of the tasks; one that failed: ``TaskFailure`` (``"collect"``) or nothing (``"skip"``)."""
    strategy_used: ExecutionStrategy
    """Where it ran; never ``Auto``."""
    execution_time: float
    """Seconds from the call to the last output."""
    fallback_occurred: bool
    """Whether the CPU did what a GPU was to do and failed at."""
    errors: tuple[BaseException, ...]
    """Failures of devices, in the order of their time, then the users' exceptions by index of the task."""
    decision: Decision
    """Why it ran there."""
    failures: tuple[TaskFailure, ...] = ()
    """Tasks whose function raised, by index."""
    per_device: Mapping[str, DeviceShare] = field(default_factory=dict)
    """What each device did."""
    retries: int = 0
    """Attempts after the first, of tasks and of pieces."""
    oom_splits: int = 0
    """How often a GPU ran out of memory and went on with fewer tasks at once."""
    stopped_by: str | None = None
    """``"cancelled"`` or ``"timeout"`` when not everything was done; else None."""
    unfinished_indices: tuple[int, ...] = ()
    """Tasks that were not done because the batch was stopped."""

    def __repr__(self) -> str:
        """Say what came of the batch in one line, however many outputs there are."""
        more = [f"{len(self.failures)} failed"] if self.failures else []
        more += [f"{self.stopped_by}, {len(self.unfinished_indices)} not done"] if self.stopped_by else []
        more += ["fell back to the CPU"] if self.fallback_occurred else []
        more += [f"{name}: {share.tasks} tasks" for name, share in self.per_device.items()]
        told = "".join(f", {each}" for each in more)
        return (
            f"<ExecutionResult: {len(self.outputs)} outputs, {self.strategy_used},"
            f" {format_seconds(self.execution_time)}{told}>"
        )

    def _repr_html_(self) -> str:
        lines = [f"{name}: {share.tasks} tasks" for name, share in self.per_device.items()]
        return result_html(repr(self), "\n".join([*lines, str(self.decision)]))

    @property
    def failed_indices(self) -> tuple[int, ...]:
        """The indices of the tasks whose function raised."""
        return tuple(failure.index for failure in self.failures)

    def raise_for_errors(self) -> None:
        """Raise the users' exceptions, if any, as one ``ExceptionGroup``, each with a note of its task.

        It is a ``BaseExceptionGroup`` where one is no ``Exception``, such as the SystemExit of a process.
        """
        if self.failures:
            errors = [noted(failure) for failure in self.failures]
            raise BaseExceptionGroup(f"{len(errors)} tasks failed", errors)


def noted(failure: TaskFailure) -> Any:
    """Return the user's exception with a note that says which task it was, and where."""
    add_note(failure.error, failure.note)
    return failure.error
