"""What a caller asks of one batch, checked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, Final, final, get_args

from accelera.errors import UnknownNameError
from accelera.execution.checking import check_profile, described
from accelera.execution.decision import Decision
from accelera.execution.failures import TaskFailure
from accelera.execution.kernel import Kernel
from accelera.execution.options import Fallback, OnError, Rerun
from accelera.execution.profile import WorkloadProfile
from accelera.execution.retry import Retry
from accelera.execution.strategy import Kind
from accelera.execution.watching.watch import Watch
from accelera.execution.work.batch import Batch
from accelera.execution.work.room import ROOMY

_ON_ERROR: Final = get_args(OnError)
_RERUN: Final = get_args(Rerun)
_FALLBACK: Final = get_args(Fallback)


@final
class Asked:
    """The options of ``StrategyManager.execute`` and ``stream``, whose name is ``op``.

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
        "on_error",
        "plain",
        "profile",
        "progress",
        "reruns",
        "retry",
        "room",
    )

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
        *,
        op: str = "execute",
    ) -> None:
        plain = retry is None and timeout is None and cancel is None and progress is None
        if not plain or profile is not None:
            _check_kinds(op, profile, retry, timeout, cancel, progress)
        if on_error not in _ON_ERROR:
            raise UnknownNameError.among("on_error", on_error, _ON_ERROR)
        if rerun not in _RERUN:
            raise UnknownNameError.among("rerun", rerun, _RERUN)
        if fallback not in _FALLBACK:
            raise UnknownNameError.among("fallback", fallback, _FALLBACK)
        if timeout is not None and not timeout >= 0:
            raise ValueError(
                f"[{op}] timeout={timeout}: seconds cannot be negative, nor nan; None waits for ever"
            )
        if rerun == "never" and fallback == "all":
            raise ValueError(
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
        """When nothing more is begun or waited for, as ``time.monotonic`` tells it."""
        self.cancel = cancel
        self.progress = progress
        self.plain = plain
        """Whether the caller's thread may simply begin."""
        self.room = ROOMY
        """How many tasks either side may be at, at once."""

    def repeats(self, function: Callable[[Any], Any]) -> bool:
        """Return whether a task that is late on one side may be begun on the other as well."""
        if self._rerun == "on_failure":
            return isinstance(function, Kernel) and function.pure
        return self._rerun == "freely"

    def batch(
        self,
        tasks: Sequence[Any],
        function: Callable[[Any], Any],
        watch: Watch,
        decision: Decision,
        outputs: Sequence[Any],
        failure: TaskFailure | None = None,
    ) -> Batch:
        """Return the work that is asked for: it begins with ``outputs`` and a task that has failed."""
        return Batch(
            tasks,
            function,
            watch,
            outputs=outputs,
            failure=failure,
            gpu_count=None if decision.dynamic else decision.strategy.gpu_tasks(len(tasks)),
            retry=self.retry,
            stop_on_error=self.on_error == "raise",
            pace=decision.pace,
            repeat=self.repeats(function) and decision.strategy.kind is Kind.HYBRID,
            reruns=self.reruns,
            memory_per_task=0 if self.profile is None else self.profile.memory_per_task,
            room=self.room,
            fallback=self.fallback,
            deadline_s=self.deadline_s,
            cancel=self.cancel,
            progress=self.progress,
        )


def _check_kinds(op: str, profile: Any, retry: Any, timeout: Any, cancel: Any, progress: Any) -> None:
    """Raise TypeError for the first option that is of another kind than it must be."""
    check_profile(op, profile)
    if retry is not None and not isinstance(retry, Retry):
        raise TypeError(f"[{op}] retry={described(retry)}: give a Retry, such as Retry(times=3)")
    if timeout is not None and (not isinstance(timeout, Real) or isinstance(timeout, bool)):
        raise TypeError(f"[{op}] timeout={described(timeout)}: give seconds, such as 1.5")
    if cancel is not None and not callable(getattr(cancel, "is_set", None)):
        raise TypeError(f"[{op}] cancel={described(cancel)}: give a threading.Event, and set it later")
    if progress is not None and not callable(progress):
        raise TypeError(
            f"[{op}] progress={described(progress)}: give a function of the tasks done and of all"
        )
