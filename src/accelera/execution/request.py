"""One call of a manager: its options checked, its batch made, its result built."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, ClassVar, Final, TypeVar, get_args

from accelera.errors import ArgumentError, DeviceError, UnfinishedError, UnknownNameError
from accelera.execution.arguments import (
    Fallback,
    OnError,
    Rerun,
    WorkloadProfile,
    check_profile,
    described,
)
from accelera.execution.faults.classify import clear_caller_frames
from accelera.execution.kernel import Kernel
from accelera.execution.observability.telemetry import Telemetry
from accelera.execution.result import DeviceShare, ExecutionResult, TaskFailure, noted
from accelera.execution.strategy.memory_limit import UNLIMITED
from accelera.execution.strategy.strategy import Decision, StrategyKind
from accelera.execution.tasks.batch import MISSING, Batch, BatchOptions
from accelera.execution.tasks.queue import QueueOptions
from accelera.execution.tasks.retry import Retry

Output = TypeVar("Output")

_ON_ERROR: Final = get_args(OnError)
_RERUN: Final = get_args(Rerun)
_FALLBACK: Final = get_args(Fallback)


class ExecuteRequest:
    """The checked options of ``StrategyManager.execute``.

    Raises
    ------
    UnknownNameError
        When a word is none of the options.
    ValueError
        When the timeout is negative or no number, or two options contradict each other.
    TypeError
        When an option is of another kind.
    """

    __slots__ = (
        "_rerun",
        "cancel",
        "deadline_s",
        "fallback",
        "limit",
        "on_error",
        "plain",
        "profile",
        "progress",
        "reruns",
        "retry",
    )

    op: ClassVar[str] = "execute"

    def __init__(
        self,
        profile: WorkloadProfile | None,
        on_error: OnError,
        rerun: Rerun,
        fallback: Fallback,
        retry: Retry | None,
        timeout: float | None,
        cancel: threading.Event | None,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        plain = retry is None and timeout is None and cancel is None and progress is None
        if not plain or profile is not None:
            _check_kinds(self.op, profile, retry, timeout, cancel, progress)
        if on_error not in _ON_ERROR:
            raise UnknownNameError.among("on_error", on_error, _ON_ERROR)
        if rerun not in _RERUN:
            raise UnknownNameError.among("rerun", rerun, _RERUN)
        if fallback not in _FALLBACK:
            raise UnknownNameError.among("fallback", fallback, _FALLBACK)
        if timeout is not None and not timeout >= 0:
            raise ArgumentError(
                f"[{self.op}] timeout={timeout}: seconds cannot be negative, nor nan; None waits for ever"
            )
        if rerun == "never" and fallback == "all":
            raise ArgumentError(
                "[execute] rerun='never' with fallback='all': the one forbids what the other asks for, to do"
                " everything again; fallback='unfinished' keeps what is done"
            )
        self.profile = profile
        self.on_error = on_error
        self._rerun = rerun
        self.reruns = rerun != "never"
        """Whether a task whose attempt was lost may be begun again."""
        self.fallback = fallback
        self.retry = retry
        self.deadline_s = None if timeout is None else time.monotonic() + timeout
        """When nothing more is begun or waited for, as ``time.monotonic`` counts."""
        self.cancel = cancel
        self.progress = progress
        self.plain = plain
        """Whether the caller's thread may simply begin."""
        self.limit = UNLIMITED
        """The most tasks that each side may run at once."""

    @property
    def memory_per_task(self) -> int:
        """Bytes that a task takes, as the profile says; 0: not known."""
        return 0 if self.profile is None else self.profile.memory_per_task

    def reserved_bytes(self) -> int:
        """Return the bytes of the tasks that run at once on the CPU; 0 where their size is not known."""
        if self.profile is None or self.limit.cpu is None:
            return 0
        return self.limit.cpu * self.profile.memory_per_task

    def repeats(self, function: Callable[[Any], Any]) -> bool:
        """Return whether a task that is late on one side may be begun on the other as well."""
        if self._rerun == "on_failure":
            return isinstance(function, Kernel) and function.pure
        return self._rerun == "freely"

    def batch(
        self,
        tasks: Sequence[Any],
        function: Callable[[Any], Any],
        telemetry: Telemetry,
        decision: Decision,
        outputs: Sequence[Any],
        failure: TaskFailure | None = None,
    ) -> Batch:
        """Return the batch of this request: it begins with ``outputs`` and a task that has failed."""
        options = BatchOptions(
            retry=self.retry,
            reruns=self.reruns,
            memory_per_task=self.memory_per_task,
            limit=self.limit,
            deadline_s=self.deadline_s,
            cancel=self.cancel,
            gpu_count=None if decision.dynamic else decision.strategy.gpu_tasks(len(tasks)),
            rates=decision.pace,
            repeat=self.repeats(function) and decision.strategy.kind is StrategyKind.HYBRID,
            stop_on_error=self.on_error == "raise",
            fallback=self.fallback,
            progress=self.progress,
        )
        return Batch(tasks, function, telemetry, options, outputs=outputs, failure=failure)


class StreamRequest(ExecuteRequest):
    """The checked options of ``StrategyManager.stream``; raises as ``ExecuteRequest`` does."""

    __slots__ = ("ordered", "window")

    op = "stream"

    def __init__(
        self,
        profile: WorkloadProfile | None,
        on_error: OnError,
        rerun: Rerun,
        retry: Retry | None,
        timeout: float | None,
        cancel: threading.Event | None,
        *,
        ordered: bool,
        window: int | str | None,
    ) -> None:
        super().__init__(profile, on_error, rerun, "unfinished", retry, timeout, cancel, None)
        self.ordered = ordered
        self.window = window

    def queue_options(self) -> QueueOptions:
        """Return the options of the stream's queue."""
        return QueueOptions(
            self.retry, self.reruns, self.memory_per_task, self.limit, self.deadline_s, self.cancel
        )


def _check_kinds(op: str, profile: Any, retry: Any, timeout: Any, cancel: Any, progress: Any) -> None:
    """Raise TypeError for the first option that is of another kind than it must be."""
    check_profile(op, profile)
    if retry is not None and not isinstance(retry, Retry):
        raise ArgumentError(f"[{op}] retry={described(retry)}: give a Retry, such as Retry(times=3)")
    if timeout is not None and (not isinstance(timeout, Real) or isinstance(timeout, bool)):
        raise ArgumentError(f"[{op}] timeout={described(timeout)}: give seconds, such as 1.5")
    if cancel is not None and not callable(getattr(cancel, "is_set", None)):
        raise ArgumentError(f"[{op}] cancel={described(cancel)}: give a threading.Event, and set it later")
    if progress is not None and not callable(progress):
        raise ArgumentError(
            f"[{op}] progress={described(progress)}: give a function of the tasks done and of all"
        )


def take_failures(batch: Batch) -> list[TaskFailure]:
    """Return the tasks that failed, by index; the closed ``batch`` and the frames on the way forget them."""
    failures, batch.failures = [batch.failures[index] for index in sorted(batch.failures)], {}
    clear_caller_frames([*batch.telemetry.device_errors, *(failure.error for failure in failures)])
    return failures


def take_batch_error(batch: Batch) -> BaseException:
    """Return the error that ended ``batch`` without a task's fault; no reference to it is kept."""
    error, batch.broken = batch.broken, None
    assert error is not None, "asked only where something did"
    clear_caller_frames([error])
    return error


def without_frames(result: ExecutionResult[Output]) -> ExecutionResult[Output]:
    """Return ``result``; the frames that its exceptions came through keep neither tasks nor the result."""
    if result.errors:
        clear_caller_frames(result.errors)
    return result


def build_result(batch: Batch, decision: Decision, on_error: OnError, began_s: float) -> ExecutionResult[Any]:
    """Return the result of ``batch``; raises the user's exception, or what ended the batch."""
    batch.close()
    if batch.broken is not None:
        raise take_batch_error(batch)
    if batch.stopped_by == "left":
        raise DeviceError(
            "[execute] an executor returned although tasks were left: `Lane.work` must go on until"
            " `take` returns None"
        )
    failures = take_failures(batch)
    if failures and on_error == "raise":
        raise noted(failures.pop(0))
    result = result_from(batch.outputs, failures, decision, batch.telemetry, began_s)
    result.per_device = batch.telemetry.shares()
    if failures or batch.left:
        _fill_missing_outputs(result, batch, on_error)
    if batch.stopped_by == "timeout" and on_error == "raise":
        raise UnfinishedError(_timeout_message(batch, result), result=result)
    return result


def result_from(
    outputs: list[Any],
    failures: Sequence[TaskFailure],
    decision: Decision,
    telemetry: Telemetry,
    began_s: float,
) -> ExecutionResult[Any]:
    """Return the result of a batch with ``outputs``, as its telemetry has it."""
    errors = tuple(telemetry.device_errors)
    if failures:
        errors += tuple(failure.error for failure in failures)
    return ExecutionResult(
        outputs,
        decision.strategy,
        time.perf_counter() - began_s,
        telemetry.fallen_back > 0,
        errors,
        decision,
        tuple(failures),
        telemetry.per_device,
        telemetry.retries,
        telemetry.oom_splits,
    )


def quick_result(
    device: str, outputs: list[Any], seconds: float, decision: Decision, began_s: float
) -> ExecutionResult[Any]:
    """Return the result of a batch that the calling thread did at once, and that nobody observes."""
    per_device = {device: DeviceShare(len(outputs), 1, seconds)} if outputs else {}
    spent_s = time.perf_counter() - began_s
    return ExecutionResult(outputs, decision.strategy, spent_s, False, (), decision, (), per_device)


def _fill_missing_outputs(result: ExecutionResult[Any], batch: Batch, on_error: OnError) -> None:
    """Fill missing outputs with failures or None, or drop them (``"skip"``); set ``unfinished_indices``."""
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


def _timeout_message(batch: Batch, result: ExecutionResult[Any]) -> str:
    left, count = len(result.unfinished_indices), len(batch.outputs)
    return (
        f"[execute] {left} of {count} tasks were not done after {result.execution_time:.3g} s, when the"
        f" timeout was over; what was done is in the error's `result`; give more time, or on_error='collect'"
    )
