"""What went wrong in a batch, parted from it: an exception may live long, and must not keep the tasks."""

from __future__ import annotations

from typing import TypeVar

from accelera.execution.failures import TaskFailure
from accelera.execution.faults.letting_go import empty_calls_above
from accelera.execution.result import ExecutionResult
from accelera.execution.work.batch import Batch

Output = TypeVar("Output")


def taken_failures(batch: Batch) -> list[TaskFailure]:
    """Return which tasks failed, by index; the closed ``batch`` and the calls on the way forget them."""
    failures, batch.failures = [batch.failures[index] for index in sorted(batch.failures)], {}
    empty_calls_above([*batch.watch.device_errors, *(failure.error for failure in failures)])
    return failures


def taken_breach(batch: Batch) -> BaseException:
    """Return what ended ``batch``, though no task is to blame; it and the calls on the way forget it."""
    error, batch.broken = batch.broken, None
    assert error is not None, "asked only where something did"
    empty_calls_above([error])
    return error


def parted(result: ExecutionResult[Output]) -> ExecutionResult[Output]:
    """Return ``result``, which the calls that made it forget, where an exception in it knows them."""
    if result.errors:
        empty_calls_above(result.errors)
    return result
