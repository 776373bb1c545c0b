"""Default CPU executor: threads, or worker processes for a kernel that asks for them."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast, final

from accelera._fork_locks import ForkSafeLock
from accelera.errors import UnknownNameError
from accelera.execution.arguments import check_workers
from accelera.execution.executors.lanes import PROCESSES, Closeable, CpuExecutor, outputs_of
from accelera.execution.executors.lock_probe import LockProbe, ProbedQueue
from accelera.execution.executors.threads import ThreadsExecutor
from accelera.execution.hardware.cpu_share import cores_here, process_share
from accelera.execution.kernel import FUNCTIONS_KEPT, Kernel, LruDict, identity_of, name_of
from accelera.execution.tasks.queue import TaskQueue
from accelera.execution.tasks.run import run_lane

if TYPE_CHECKING:
    from accelera.execution.executors.processes.executor import ProcessesExecutor


_LOGGER = logging.getLogger("accelera.execution")

Inline = Callable[[Callable[[Any], Any], Sequence[Any]], "tuple[list[Any], Exception | None, float]"]
"""See ``ThreadsExecutor.inline``."""


@final
class AutoCpuExecutor(Closeable):
    """Runs tasks on threads; a kernel made with ``processes=True`` runs in worker processes instead.

    A batch never uses both. Where threads were measured to wait for the interpreter lock, ``recommendation``
    says so, and the log once for every function.

    Parameters
    ----------
    workers
        Number of threads, the caller's among them, or of processes; None: the usable cores.

    Raises
    ------
    ValueError
        When ``workers`` is below 1.
    """

    name = ThreadsExecutor.name
    name_of_processes = PROCESSES

    def __init__(self, workers: int | None = None) -> None:
        check_workers("AutoCpuExecutor", workers)
        self._threads = ThreadsExecutor(workers)
        self.workers = self._threads.workers
        self._asked_workers = workers
        self._processes: ProcessesExecutor | None = None
        self._probes: LruDict[str, LockProbe] = LruDict(FUNCTIONS_KEPT)
        self._lock = ForkSafeLock()

    def __repr__(self) -> str:
        return f"AutoCpuExecutor({self.workers})"

    def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> list[Any]:
        """Return the outputs of all tasks, in their order; raises what the first that failed raised."""
        return outputs_of(self, tasks, process_fn)

    def inline(
        self, function: Callable[[Any], Any], tasks: Sequence[Any]
    ) -> tuple[list[Any], Exception | None, float]:
        """Run the first tasks in the calling thread, as ``ThreadsExecutor.inline`` does."""
        if _asks_for_processes(function):
            return [], None, 0.0
        return self._threads.inline(function, tasks)

    def work(self, queue: TaskQueue, *, caller: bool) -> None:
        """Carry out what there is for the CPU."""
        if _asks_for_processes(queue.function):
            self._process_executor().work(queue, caller=caller)
        elif self._is_measured(queue.function):
            run_lane(queue, self._run_measured, "cpu", caller=caller)
        else:
            self._threads.work(queue, caller=caller)

    def recommendation(self, function: Callable[..., Any]) -> str | None:
        """Return why processes should be faster for ``function``; None where that is not known."""
        if _asks_for_processes(function) or not self._is_measured(function):
            return None
        probe = self.probe_of(function)
        fraction, used = probe.held_fraction, probe.cores
        if fraction is None or used is None or not probe.is_held:
            return None
        cores = min(self.workers, cores_here())
        return (
            f"its tasks wait for the interpreter lock: {fraction:.0%} of the samples found it held, and"
            f" {self.workers} at a time used {used:.1f} cores;"
            f" worker processes could be up to {cores / max(used, 1.0):.1f} times faster;"
            f' choose them with cpu="processes" or kernel(processes=True)'
        )

    def probe_of(self, function: Callable[..., Any]) -> LockProbe:
        """Return what has been measured of ``function``."""
        name = identity_of(function)
        with self._lock:
            return self._probes.get_or_make(name, LockProbe)

    def close(self) -> None:
        """End the worker processes, if there are any; new ones start when they are needed again."""
        with self._lock:
            processes, self._processes = self._processes, None
        if processes is not None:
            processes.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel as the number of workers."""
        return AutoCpuExecutor, (self._asked_workers,)

    def _is_measured(self, function: Callable[..., Any]) -> bool:
        """Return whether worker processes could be faster for ``function``."""
        if min(self.workers, cores_here()) < 2 or process_share() is not None or not _has_gil():
            return False
        return not (isinstance(function, Kernel) and function.releases_gil)

    def _run_measured(self, queue: TaskQueue) -> None:
        """Run on threads, and measure whether they wait for the interpreter lock."""
        probe, function = self.probe_of(queue.function), queue.function
        probed = ProbedQueue(queue, probe, lambda: self._report(function, probe))
        self._threads.work(cast(TaskQueue, probed), caller=True)

    def _report(self, function: Callable[..., Any], probe: LockProbe) -> None:
        if probe.reported or not probe.is_held:
            return
        reason = self.recommendation(function)
        if reason is not None:
            probe.reported = True
            _LOGGER.info("%s: %s", name_of(function), reason)

    def _process_executor(self) -> ProcessesExecutor:
        from accelera.execution.executors.processes.executor import ProcessesExecutor

        with self._lock:
            if self._processes is None:
                self._processes = ProcessesExecutor(self._asked_workers)
            return self._processes


def _asks_for_processes(function: Callable[..., Any]) -> bool:
    """Return whether ``function`` is a kernel made with ``processes=True``."""
    return isinstance(function, Kernel) and function.processes


def _has_gil() -> bool:
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


@functools.cache
def default_cpu() -> AutoCpuExecutor:
    """Return the executor that managers share which are given none."""
    return AutoCpuExecutor()


CpuName = Literal["threads", "processes"]
"""Name of an executor of the CPU."""


def cpu_executor(cpu: CpuExecutor | CpuName | None) -> CpuExecutor:
    """Return the executor of that name, the shared default for None, and any other executor as it is."""
    if cpu is None:
        return default_cpu()
    if not isinstance(cpu, str):
        return cpu
    if cpu == "threads":
        return ThreadsExecutor()
    if cpu == "processes":
        from accelera.execution.executors.processes.executor import ProcessesExecutor

        return ProcessesExecutor()
    raise UnknownNameError(
        "[StrategyManager] cpu=" + repr(cpu) + ': unknown, expected "threads" or "processes"'
    )


def inline_of(cpu: CpuExecutor) -> Inline | None:
    """Return what runs the first tasks of a batch in the calling thread; None for an executor without it."""
    return cpu.inline if isinstance(cpu, AutoCpuExecutor | ThreadsExecutor) else None
