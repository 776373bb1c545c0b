"""What came of a batch of work (seed 002)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, final

from accelera.execution.decision import Decision
from accelera.execution.failures import TaskFailure
from accelera.execution.notes import add_note
from accelera.execution.shares import DeviceShare
from accelera.execution.strategy import ExecutionStrategy

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
            f" {self.execution_time:.3g} s{told}>"
        )

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
