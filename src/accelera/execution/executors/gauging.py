"""How much faster threads carry a function out than one alone does: work that is timed as it is taken."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, final

from accelera.execution.work.batch import Batch
from accelera.execution.work.contract import Running, Work
from accelera.execution.work.pieces import Piece, Side

LEAST_S: Final = 0.1
"""What all threads together must have worked before anything is concluded."""
HELD_SPEEDUP: Final = 1.2
"""Threads that are not faster than this hold each other up."""
COMPUTES: Final = 0.1
"""A function that has a core for this part of its time computes; one that has it for less waits."""
KEPT_S: Final = 5.0
"""When threads have worked for so long, all counts half from then on."""
TASK_S, BYTE_S = 2e-6, 1e-9
"""What handing a task to another process takes, and each byte of it and of its output."""


def handing_s(task: Any, output: Any) -> float:
    """Return the seconds it takes to hand ``task`` over and get ``output`` back; infinite if that cannot be.

    Nor may it be when nothing comes back, or the task itself: then what the function changes is what counts.
    """
    from accelera.execution.executors.workers.parcels import pack

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
    return time.perf_counter(), time.thread_time(), _ready_s()


def seconds_between(since: Clocks, now: Clocks) -> tuple[float, float]:
    """Return the seconds that passed, without those in which others had the core, and those with a core."""
    busy_s = now[1] - since[1]
    return max(now[0] - since[0] - (now[2] - since[2]), busy_s), busy_s


def _ready_s() -> float:
    """Return how long the calling thread was ready to run and had no core; 0 where nobody tells.

    Linux does, in nanoseconds. A thread that waits for Python's lock is not ready, so the two are told apart
    however busy the machine is.
    """
    try:
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as file:
            return int(file.read(64).split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0


@final
class Gauge:
    """What has been seen of one function. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.forget()

    def forget(self) -> None:
        """Begin anew."""
        self.alone_s: float | None = None
        """Seconds that a task took while one thread worked; None: not known."""
        self._alone_busy_s = 0.0
        self.handing_s: float | None = None
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
class Gauged:
    """Work that is timed while threads carry it out, and that they are told to leave; else as it is.

    Parameters
    ----------
    work
        The batch.
    gauge
        Learns how fast it goes.
    threads
        How many share it.
    leaves
        Asked before each piece whether the threads should go.
    """

    def __init__(self, work: Work, gauge: Gauge, threads: int, leaves: Callable[[Gauged], bool]) -> None:
        self._work = work
        self._gauge = gauge
        self._threads = threads
        self._leaves = leaves
        self._mine = threading.local()
        self._sample: tuple[Any, Any] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)

    def take(self, side: Side, count: int, *, wait: bool = True) -> Piece | None:
        """Time the piece before, then take the next.

        The time between two pieces counts for the second: that is where threads wait for the lock as well.
        Not so where they wait for a source, or for a caller that takes no outputs: only a batch has neither.
        """
        now = clocks()
        piece = getattr(self._mine, "piece", None)
        if piece is not None:
            wall_s, busy_s = seconds_between(self._mine.since, now)
            self._gauge.together(self._threads, len(piece.tasks), wall_s, busy_s)
        self._mine.piece = None
        taken = None if self._leaves(self) else self._work.take(side, count, wait=wait)
        self._mine.piece = taken
        self._mine.since = now if isinstance(self._work, Batch) else clocks()
        return taken

    def finish(self, start: int, outputs: Sequence[Any]) -> None:
        """Keep one output, and bring all."""
        piece: Piece = self._mine.piece
        if self._sample is None and start == piece.start:
            self._sample = piece.tasks[0], outputs[0]
        self._work.finish(start, outputs)

    def tell_handing_s(self) -> None:
        """Find out what handing a task over would take, if that is not known."""
        if self._gauge.handing_s is None and self._sample is not None:
            self._gauge.handing_s = handing_s(*self._sample)

    def wait(self, threads: Sequence[Running]) -> None:
        """Return when ``threads`` have ended: the batch may go on elsewhere."""
        for thread in threads:
            thread.join()
