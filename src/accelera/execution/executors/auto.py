"""Default CPU executor: threads, or worker processes for a function measured to hold Python's lock."""

from __future__ import annotations

import functools
import math
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast, final

from accelera.errors import TransferError
from accelera.execution.arguments import asked_workers
from accelera.execution.executors.lanes import PROCESSES, Closeable, CpuExecutor, outputs_of
from accelera.execution.executors.threads import ThreadsExecutor
from accelera.execution.hardware.cpu_share import cores_here, process_share
from accelera.execution.kernel import FUNCTIONS_KEPT, Kernel, LruDict, identity_of
from accelera.execution.tasks.batch import Batch
from accelera.execution.tasks.queue import DeviceKind, Joinable, TaskQueue, TaskRange
from accelera.execution.tasks.run import modes_are_set, run_lane, run_range

if TYPE_CHECKING:
    from accelera.execution.executors.processes.executor import ProcessesExecutor


LEAST_S: Final = 0.1
"""Seconds that all threads together must have worked before anything is concluded."""
HELD_SPEEDUP: Final = 1.2
"""Threads with less speedup than this are taken to contend for the GIL."""
COMPUTES: Final = 0.1
"""A function that has a core for this part of its time computes; one that has it for less waits."""
KEPT_S: Final = 5.0
"""After so many seconds of work all earlier measurements count half."""
TASK_S, BYTE_S = 2e-6, 1e-9
"""Seconds to hand a task to another process, and per byte of the task and its output."""


def transfer_s(task: Any, output: Any) -> float:
    """Return the seconds it takes to hand ``task`` over and get ``output`` back; infinite if that cannot be.

    Nor may it be when nothing comes back, or the task itself: then what the function changes is what counts.
    """
    from accelera.execution.executors.processes.messages import pack

    if output is None or output is task:
        return math.inf
    try:
        parts = [*pack(task), *pack(output)]
    except Exception:
        return math.inf
    return TASK_S + BYTE_S * sum(len(part) for part in parts)


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
        self._lock = threading.Lock()
        self.forget()

    def forget(self) -> None:
        """Forget every measurement."""
        self.alone_s: float | None = None
        """Seconds that a task took while one thread worked; None: not known."""
        self._alone_busy_s = 0.0
        self.transfer_s: float | None = None
        """Seconds that handing a task to another process takes; infinite if it cannot be; None: not known."""
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
    """Proxy of a queue that times its threads, and lets them stop early in favour of processes.

    Parameters
    ----------
    queue
        The batch.
    probe
        Learns how fast it goes.
    threads
        How many share it.
    should_leave
        Asked before each piece whether the threads should stop.
    """

    def __init__(
        self, queue: TaskQueue, probe: ScalingProbe, threads: int, should_leave: Callable[[TimedQueue], bool]
    ) -> None:
        self._queue = queue
        self._probe = probe
        self._threads = threads
        self._should_leave = should_leave
        self._thread_state = threading.local()
        self._sample: tuple[Any, Any] | None = None

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
        taken = None if self._should_leave(self) else self._queue.take(side, count, wait=wait)
        self._thread_state.piece = taken
        self._thread_state.since = now if isinstance(self._queue, Batch) else clocks()
        return taken

    def finish(self, start: int, outputs: Sequence[Any], device: str | None = None) -> None:
        """Keep one output, and bring all."""
        piece: TaskRange = self._thread_state.piece
        if self._sample is None and start == piece.start:
            self._sample = piece.tasks[0], outputs[0]
        self._queue.finish(start, outputs, device)

    def measure_transfer(self) -> None:
        """Find out what handing a task over would take, if that is not known."""
        if self._probe.transfer_s is None and self._sample is not None:
            self._probe.transfer_s = transfer_s(*self._sample)

    def wait(self, threads: Sequence[Joinable]) -> None:
        """Return when ``threads`` have ended: the batch may go on elsewhere."""
        for thread in threads:
            thread.join()


Inline = Callable[[Callable[[Any], Any], Sequence[Any]], "tuple[list[Any], Exception | None, float]"]
"""See ``ThreadsExecutor.inline``."""
WORTH: Final = 10
"""A task must take so many times longer than handing it over."""
SWITCH_S: Final = 1.0
"""Seconds of work that must be left for a batch under way to change to processes."""
START_S, WAKE_S = 0.25, 5e-3
"""Least gain in seconds for which processes are used: with workers to start, and with running ones."""


@final
class AutoCpuExecutor(Closeable):
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
        self._probes: LruDict[str, ScalingProbe] = LruDict(FUNCTIONS_KEPT)
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
        if len(tasks) > 1 and _is_declared_to_hold_gil(function):
            return [], None, 0.0
        return self._threads.inline(function, tasks)

    def work(self, queue: TaskQueue, *, caller: bool) -> None:
        """Carry out what there is for the CPU."""
        if not self._may_use_processes(queue.function):
            self._threads.work(queue, caller=caller)
        else:
            run_lane(queue, self._measure_or_switch, "cpu", caller=caller)

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

    def _may_use_processes(self, function: Callable[..., Any]) -> bool:
        """Return whether ``function`` could run on processes at all."""
        if min(self.workers, cores_here()) < 2 or process_share() is not None or not _has_gil():
            return False
        return not (isinstance(function, Kernel) and function.releases_gil)

    def _measure_or_switch(self, queue: TaskQueue) -> None:
        probe = self.probe_of(queue.function)
        if not self._starts_on_processes(queue, probe) and not self._run_on_threads(queue, probe):
            return
        processes = self._process_executor()
        if not processes.carry_out(queue, leaves_unsendable=True):
            probe.transfer_s = math.inf
            self._threads.work(queue, caller=True)
        elif processes.task_s(queue.function) > self.workers * (probe.alone_s or math.inf):
            probe.forget()

    def _starts_on_processes(self, queue: TaskQueue, probe: ScalingProbe) -> bool:
        if _is_declared_to_hold_gil(queue.function):
            return probe.transfer_s != math.inf
        if not (probe.held and probe.alone_s is not None and probe.transfer_s is not None):
            return False
        gained_s = probe.alone_s * queue.remaining * (1 - 1 / self.workers)
        started = self._processes is not None and self._processes.started
        return gained_s > (WAKE_S if started else START_S) and _may_move_to_processes(queue, probe)

    def _run_on_threads(self, queue: TaskQueue, probe: ScalingProbe) -> bool:
        """Run on threads; return whether they stopped early because processes are predicted to be faster."""
        answers: list[bool] = []
        paused = threading.Event()

        def should_leave(timed: TimedQueue) -> bool:
            if probe.unclear and not resumed:
                paused.set()
                return True
            if not answers and probe.held and (probe.alone_s or 0) * queue.remaining > SWITCH_S:
                timed.measure_transfer()
                if probe.transfer_s is not None:
                    answers.append(_may_move_to_processes(queue, probe))
            return answers[:1] == [True]

        resumed = False
        timed = TimedQueue(queue, probe, min(self.workers, max(queue.left, 1)), should_leave)
        self._threads.work(cast(TaskQueue, timed), caller=True)
        if paused.is_set():
            resumed = True
            self._measure_single_thread(queue, probe)
            self._threads.work(cast(TaskQueue, timed), caller=True)
        if probe.held:
            timed.measure_transfer()
        return answers[:1] == [True] and not queue.stopped

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


def _is_declared_to_hold_gil(function: Callable[..., Any]) -> bool:
    """Return whether the user declared that ``function`` holds the GIL."""
    return isinstance(function, Kernel) and function.releases_gil is False


def _has_gil() -> bool:
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


def _may_move_to_processes(queue: TaskQueue, probe: ScalingProbe) -> bool:
    """Return whether the function can be pickled, is slow enough, and has no side effects to lose."""
    if probe.transfer_s is None or (probe.alone_s or 0.0) < WORTH * probe.transfer_s or modes_are_set():
        return False
    from accelera.execution.executors.processes.messages import FunctionPayload
    from accelera.execution.executors.processes.side_effects import has_no_side_effects

    if not has_no_side_effects(queue.function):
        return False
    try:
        FunctionPayload(queue.function, queue.retry)
    except TransferError:
        return False
    return True


@functools.cache
def default_cpu() -> AutoCpuExecutor:
    """Return the executor that managers share which are given none."""
    return AutoCpuExecutor()


def inline_of(cpu: CpuExecutor) -> Inline | None:
    """Return what runs the first tasks of a batch in the calling thread; None for an executor without it."""
    return cpu.inline if isinstance(cpu, AutoCpuExecutor | ThreadsExecutor) else None
