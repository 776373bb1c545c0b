"""The CPU's default: threads, or worker processes for a function that was found to hold Python's lock."""

from __future__ import annotations

import functools
import math
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast, final

from accelera.errors import TransferError
from accelera.execution import inside
from accelera.execution.checking import asked_workers
from accelera.execution.closing import Closing
from accelera.execution.cores import cores_here
from accelera.execution.executors.gauging import Gauge, Gauged, clocks, seconds_between
from accelera.execution.executors.names import PROCESSES
from accelera.execution.executors.threads import ThreadsExecutor
from accelera.execution.executors.whole import outputs_of
from accelera.execution.kernel import Kernel
from accelera.execution.learning.identity import identity_of
from accelera.execution.thread_context import modes_are_set
from accelera.execution.work.applying import carry_out
from accelera.execution.work.contract import Work
from accelera.execution.work.guarding import guarded
from accelera.execution.work.pieces import Side

if TYPE_CHECKING:
    from accelera.execution.executors.processes import ProcessesExecutor

WORTH: Final = 10
"""A task must take so many times longer than handing it over."""
SWITCH_S: Final = 1.0
"""A batch under way changes to processes when so many seconds of work are left."""
START_S, WAKE_S = 0.25, 5e-3
"""What must be gained, at least, when workers have yet to start, and when they are there."""
_KEPT: Final = 1024


@final
class AutoCpuExecutor(Closing):
    """Runs tasks on threads; on processes if threads were measured to hold each other up, and it may be done.

    A function goes to processes when n threads were less than 1.2 times as fast as one, a task takes more
    than ten times what handing it over does, function, task and output can be pickled, and nothing in sight
    is changed by it: it closes over constants only, and returns something that is not None nor its task.
    ``kernel(pure=True)`` vouches for the last, ``kernel(releases_gil=…)`` decides at once.

    Parameters
    ----------
    workers, max_workers
        Number of threads, the caller's among them, or of processes; None: the usable cores.

    Raises
    ------
    ValueError
        When ``workers`` is below 1.
    """

    name = ThreadsExecutor.name
    name_of_processes = PROCESSES

    def __init__(self, workers: int | None = None, *, max_workers: int | None = None) -> None:
        workers = asked_workers("AutoCpuExecutor", workers, max_workers)
        self._threads = ThreadsExecutor(workers)
        self.workers = self._threads.workers
        self._asked_workers = workers
        self._processes: ProcessesExecutor | None = None
        self._gauges: dict[str, Gauge] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"AutoCpuExecutor({self.workers})"

    def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> list[Any]:
        """Return the outputs of all tasks, in their order; raises what the first that failed raised."""
        return outputs_of(self, tasks, process_fn)

    def inline(
        self, function: Callable[[Any], Any], tasks: Sequence[Any]
    ) -> tuple[list[Any], Exception | None, float]:
        """Run the first tasks in the calling thread, as ``ThreadsExecutor.inline`` does."""
        if len(tasks) > 1 and _is_declared(function):
            return [], None, 0.0
        return self._threads.inline(function, tasks)

    def work(self, work: Work, *, caller: bool) -> None:
        """Carry out what there is for the CPU."""
        if not self._may_change(work.function):
            self._threads.work(work, caller=caller)
        elif caller:
            self._work(work)
        else:
            aside = guarded(work, functools.partial(self._work, work))
            thread = threading.Thread(target=aside, name="accelera-cpu", daemon=True)
            thread.start()
            work.wait([thread])

    def gauge_of(self, function: Callable[..., Any]) -> Gauge:
        """Return what has been measured of ``function``."""
        name = identity_of(function)
        with self._lock:
            if len(self._gauges) >= _KEPT:
                self._gauges.clear()
            return self._gauges.setdefault(name, Gauge())

    def close(self) -> None:
        """End the worker processes, if there are any; new ones start when they are needed again."""
        with self._lock:
            processes, self._processes = self._processes, None
        if processes is not None:
            processes.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel as the number of workers."""
        return AutoCpuExecutor, (self._asked_workers,)

    def _may_change(self, function: Callable[..., Any]) -> bool:
        """Return whether processes come into question for ``function`` at all."""
        if min(self.workers, cores_here()) < 2 or inside.share() is not None or not _has_lock():
            return False
        return not (isinstance(function, Kernel) and function.releases_gil)

    def _work(self, work: Work) -> None:
        gauge = self.gauge_of(work.function)
        if not self._begins_with_processes(work, gauge) and not self._threads_left(work, gauge):
            return
        processes = self._workers()
        if not processes.carry_out(work, leaves_unsendable=True):
            gauge.handing_s = math.inf
            self._threads.work(work, caller=True)
        elif processes.task_s(work.function) > self.workers * (gauge.alone_s or math.inf):
            gauge.forget()

    def _begins_with_processes(self, work: Work, gauge: Gauge) -> bool:
        if _is_declared(work.function):
            return gauge.handing_s != math.inf
        if not (gauge.held and gauge.alone_s is not None and gauge.handing_s is not None):
            return False
        gained_s = gauge.alone_s * work.remaining * (1 - 1 / self.workers)
        started = self._processes is not None and self._processes.started
        return gained_s > (WAKE_S if started else START_S) and _may_go(work, gauge)

    def _threads_left(self, work: Work, gauge: Gauge) -> bool:
        """Let threads work; return whether they left something, because processes will do it sooner."""
        answers: list[bool] = []
        paused = threading.Event()

        def leaves(gauged: Gauged) -> bool:
            if gauge.unclear and not resumed:
                paused.set()
                return True
            if not answers and gauge.held and (gauge.alone_s or 0) * work.remaining > SWITCH_S:
                gauged.tell_handing_s()
                if gauge.handing_s is not None:
                    answers.append(_may_go(work, gauge))
            return answers[:1] == [True]

        resumed = False
        gauged = Gauged(work, gauge, min(self.workers, max(work.left, 1)), leaves)
        self._threads.work(cast(Work, gauged), caller=True)
        if paused.is_set():
            resumed = True
            self._one_alone(work, gauge)
            self._threads.work(cast(Work, gauged), caller=True)
        if gauge.held:
            gauged.tell_handing_s()
        return answers[:1] == [True] and not work.stopped

    def _one_alone(self, work: Work, gauge: Gauge) -> None:
        piece = work.take(Side.CPU, 1, wait=False)
        if piece is None:
            return
        began = clocks()
        done = carry_out(work, piece, self.name)
        if done:
            gauge.alone(done, *seconds_between(began, clocks()))

    def _workers(self) -> ProcessesExecutor:
        from accelera.execution.executors.processes import ProcessesExecutor

        with self._lock:
            if self._processes is None:
                self._processes = ProcessesExecutor(self._asked_workers)
            return self._processes


def _is_declared(function: Callable[..., Any]) -> bool:
    """Return whether the user said that ``function`` holds the lock."""
    return isinstance(function, Kernel) and function.releases_gil is False


def _has_lock() -> bool:
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


def _may_go(work: Work, gauge: Gauge) -> bool:
    """Return whether the function can be sent, is worth it, and changes nothing that would be missed."""
    if gauge.handing_s is None or (gauge.alone_s or 0.0) < WORTH * gauge.handing_s or modes_are_set():
        return False
    from accelera.execution.executors.visible import keeps_to_itself
    from accelera.execution.executors.workers.jobs import Job

    if not keeps_to_itself(work.function):
        return False
    try:
        Job(work.function, work.retry)
    except TransferError:
        return False
    return True


@functools.cache
def default_cpu() -> AutoCpuExecutor:
    """Return the executor that managers share which are given none."""
    return AutoCpuExecutor()
