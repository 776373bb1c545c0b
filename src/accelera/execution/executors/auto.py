"""Default CPU executor: threads, or worker processes for a kernel that asks for them."""

from __future__ import annotations

import functools
import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, cast, final

from accelera.errors import UnknownNameError
from accelera.execution.arguments import asked_workers
from accelera.execution.executors.lanes import PROCESSES, Closeable, CpuExecutor, outputs_of
from accelera.execution.executors.threads import ThreadsExecutor
from accelera.execution.hardware.cpu_share import cores_here, process_share
from accelera.execution.kernel import FUNCTIONS_KEPT, Kernel, LruDict, identity_of, name_of
from accelera.execution.tasks.batch import Batch
from accelera.execution.tasks.queue import DeviceKind, Joinable, TaskQueue, TaskRange
from accelera.execution.tasks.run import run_lane, run_range
from accelera.fork_locks import lock_held_at_forks

if TYPE_CHECKING:
    from accelera.execution.executors.processes.executor import ProcessesExecutor


_LOGGER = logging.getLogger("accelera.execution")

LEAST_S: Final = 0.1
"""Seconds that all threads together must have worked before anything is concluded."""
HELD_SPEEDUP: Final = 1.2
"""Threads with less speedup than this are taken to contend for the GIL."""
COMPUTES: Final = 0.1
"""A function that has a core for this part of its time computes; one that has it for less waits."""
KEPT_S: Final = 5.0
"""After so many seconds of work all earlier measurements count half."""

Clocks = tuple[float, float, float]
"""Seconds of a thread: passed, in which it had a core, and in which it was ready and had none."""


def clocks() -> Clocks:
    """Return what the calling thread's clocks show."""
    return time.perf_counter(), time.thread_time(), _runnable_wait_s()


def seconds_between(since: Clocks, now: Clocks) -> tuple[float, float]:
    """Return the seconds that passed, without those in which others had the core, and those with a core."""
    busy_s = now[1] - since[1]
    return max(now[0] - since[0] - (now[2] - since[2]), busy_s), busy_s


def _runnable_wait_s() -> float:
    """Return the seconds that the calling thread was runnable without a core; 0 except on Linux.

    A thread that waits for Python's lock is not ready, so the two are told apart
    however busy the machine is.
    """
    try:
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as file:
            return int(file.read(64).split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0


@final
class ScalingProbe:
    """Measured scaling of one function over threads. Thread-safe."""

    def __init__(self) -> None:
        self._lock = lock_held_at_forks()
        self.forget()

    def forget(self) -> None:
        """Forget every measurement."""
        self.alone_s: float | None = None
        """Seconds that a task took while one thread worked; None: not known."""
        self._alone_busy_s = 0.0
        self.reported = False
        """Whether the log recommended processes already."""
        self._tasks = self._wall_s = self._busy_s = self._threads = 0.0

    def alone(self, task_count: int, wall_s: float, busy_s: float) -> None:
        """Learn from tasks that one thread ran alone, and the seconds it had a core for them."""
        self.alone_s, self._alone_busy_s = wall_s / task_count, busy_s / task_count

    def together(self, threads: int, task_count: int, wall_s: float, busy_s: float) -> None:
        """Learn from a piece that one of several threads ran, and the seconds it had a core for it.

        What it waited for a core, which other programs had, is in neither.
        """
        if threads < 2:
            return
        with self._lock:
            if self._wall_s > KEPT_S:
                self._tasks, self._wall_s = self._tasks / 2, self._wall_s / 2
                self._busy_s, self._threads = self._busy_s / 2, self._threads / 2
            self._tasks += task_count
            self._wall_s += wall_s
            self._busy_s += busy_s
            self._threads += threads * wall_s

    @property
    def speedup(self) -> float | None:
        """How much faster threads are than one alone; None: not known yet.

        For a function that computes it is the cores that the threads had, which other programs on the machine
        cannot make more; for one that waits, by how much a task alone was quicker.
        """
        with self._lock:
            if self._wall_s < LEAST_S:
                return None
            if self.alone_s is None:
                return self._cores if self._cores >= HELD_SPEEDUP else None
            if self._alone_busy_s < COMPUTES * self.alone_s:
                return self._threads / self._wall_s * self.alone_s * self._tasks / self._wall_s
            return self._cores

    @property
    def unclear(self) -> bool:
        """Whether threads had so few cores that how long a task takes alone must tell why."""
        with self._lock:
            return self.alone_s is None and self._wall_s >= LEAST_S and self._cores < HELD_SPEEDUP

    @property
    def _cores(self) -> float:
        """How many cores the threads had together."""
        return self._threads / self._wall_s * self._busy_s / self._wall_s

    @property
    def held(self) -> bool:
        """Whether threads were found to hold each other up."""
        speedup = self.speedup
        return speedup is not None and speedup < HELD_SPEEDUP


@final
class TimedQueue:
    """Proxy of a queue that times its threads, and lets them pause for a measurement of one thread alone.

    Parameters
    ----------
    queue
        The batch.
    probe
        Learns how fast it goes.
    threads
        How many share it.
    should_pause
        Asked before each piece whether the threads should pause.
    """

    def __init__(
        self, queue: TaskQueue, probe: ScalingProbe, threads: int, should_pause: Callable[[], bool]
    ) -> None:
        self._queue = queue
        self._probe = probe
        self._threads = threads
        self._should_pause = should_pause
        self._thread_state = threading.local()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def take(self, side: DeviceKind, count: int, *, wait: bool = True) -> TaskRange | None:
        """Time the piece before, then take the next.

        The time between two pieces counts for the second: that is where threads wait for the lock as well.
        Not so where they wait for a source, or for a caller that takes no outputs: only a batch has neither.
        """
        now = clocks()
        piece = getattr(self._thread_state, "piece", None)
        if piece is not None:
            wall_s, busy_s = seconds_between(self._thread_state.since, now)
            self._probe.together(self._threads, len(piece.tasks), wall_s, busy_s)
        self._thread_state.piece = None
        taken = None if self._should_pause() else self._queue.take(side, count, wait=wait)
        self._thread_state.piece = taken
        self._thread_state.since = now if isinstance(self._queue, Batch) else clocks()
        return taken

    def wait(self, threads: Sequence[Joinable]) -> None:
        """Return when ``threads`` have ended: the batch may go on elsewhere."""
        for thread in threads:
            thread.join()


Inline = Callable[[Callable[[Any], Any], Sequence[Any]], "tuple[list[Any], Exception | None, float]"]
"""See ``ThreadsExecutor.inline``."""


@final
class AutoCpuExecutor(Closeable):
    """Runs tasks on threads; a kernel made with ``processes=True`` runs in worker processes instead.

    A batch never uses both. Where threads were measured to wait for the interpreter lock, ``recommendation``
    says so, and the log once for every function.

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
        self._probes: LruDict[str, ScalingProbe] = LruDict(FUNCTIONS_KEPT)
        self._lock = lock_held_at_forks()

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
        speedup = probe.speedup
        if speedup is None or not probe.held:
            return None
        cores = min(self.workers, cores_here())
        return (
            f"its tasks wait for the interpreter lock: {self.workers} at a time were measured to be"
            f" {speedup:.1f} times as fast as one;"
            f" worker processes could be up to {cores / max(speedup, 1.0):.1f} times faster;"
            f' choose them with cpu="processes" or kernel(processes=True)'
        )

    def probe_of(self, function: Callable[..., Any]) -> ScalingProbe:
        """Return what has been measured of ``function``."""
        name = identity_of(function)
        with self._lock:
            return self._probes.get_or_make(name, ScalingProbe)

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
        """Run on threads, and measure whether they hold each other up."""
        probe = self.probe_of(queue.function)
        paused = threading.Event()
        resumed = False

        def should_pause() -> bool:
            if probe.unclear and not resumed:
                paused.set()
                return True
            return False

        timed = TimedQueue(queue, probe, min(self.workers, max(queue.left, 1)), should_pause)
        self._threads.work(cast(TaskQueue, timed), caller=True)
        if paused.is_set():
            resumed = True
            self._measure_single_thread(queue, probe)
            self._threads.work(cast(TaskQueue, timed), caller=True)
        self._report(queue.function, probe)

    def _report(self, function: Callable[..., Any], probe: ScalingProbe) -> None:
        if probe.reported or not probe.held:
            return
        reason = self.recommendation(function)
        if reason is not None:
            probe.reported = True
            _LOGGER.info("%s: %s", name_of(function), reason)

    def _measure_single_thread(self, queue: TaskQueue, probe: ScalingProbe) -> None:
        piece = queue.take(DeviceKind.CPU, 1, wait=False)
        if piece is None:
            return
        began = clocks()
        done = run_range(queue, piece, self.name)
        if done:
            probe.alone(done, *seconds_between(began, clocks()))

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
