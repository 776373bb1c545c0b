"""The result of a batch, from what its tasks, devices and observers have told."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from accelera.errors import DeviceError, UnfinishedError
from accelera.execution.decision import Decision
from accelera.execution.failures import TaskFailure
from accelera.execution.options import OnError
from accelera.execution.result import ExecutionResult, noted
from accelera.execution.watching.watch import Watch
from accelera.execution.work.batch import MISSING, Batch
from accelera.execution.work.forgetting import taken_breach, taken_failures


def result_of(batch: Batch, decision: Decision, on_error: OnError, began_s: float) -> ExecutionResult[Any]:
    """Return what came of ``batch``; raises what must not be returned."""
    batch.close()
    if batch.broken is not None:
        raise taken_breach(batch)
    if batch.stopped_by == "left":
        raise DeviceError(
            "[execute] an executor returned although tasks were left: `Lane.work` must go on until"
            " `take` returns None"
        )
    failures = taken_failures(batch)
    if failures and on_error == "raise":
        raise noted(failures.pop(0))
    result = told(batch.outputs, failures, decision, batch.watch, began_s)
    result.per_device = batch.watch.shares()
    if failures or batch.left:
        _leave_blanks(result, batch, on_error)
    if batch.stopped_by == "timeout" and on_error == "raise":
        raise UnfinishedError(_late(batch, result), result=result)
    return result


def told(
    outputs: list[Any], failures: Sequence[TaskFailure], decision: Decision, watch: Watch, began_s: float
) -> ExecutionResult[Any]:
    """Return the result of a batch whose outputs are ``outputs``."""
    errors = tuple(watch.device_errors)
    if failures:
        errors += tuple(failure.error for failure in failures)
    return ExecutionResult(
        outputs,
        decision.strategy,
        time.perf_counter() - began_s,
        watch.fallen_back > 0,
        errors,
        decision,
        tuple(failures),
        watch.per_device,
        watch.retries,
        watch.oom_splits,
    )


def _leave_blanks(result: ExecutionResult[Any], batch: Batch, on_error: OnError) -> None:
    """Put the failure where an output is missing, or None, or nothing; tell which tasks were not done."""
    pairs, failed = enumerate(batch.outputs), {failure.index: failure for failure in result.failures}
    result.unfinished_indices = tuple(
        index for index, output in pairs if output is MISSING and index not in failed
    )
    if on_error == "skip":
        result.outputs = [output for output in batch.outputs if output is not MISSING]
    else:
        pairs = enumerate(batch.outputs)
        result.outputs = [failed.get(index) if output is MISSING else output for index, output in pairs]
    result.stopped_by = batch.stopped_by


def _late(batch: Batch, result: ExecutionResult[Any]) -> str:
    left, count = len(result.unfinished_indices), len(batch.outputs)
    return (
        f"[execute] {left} of {count} tasks were not done after {result.execution_time:.3g} s, when the"
        f" timeout was over; what was done is in the error's `result`; give more time, or on_error='collect'"
    )
