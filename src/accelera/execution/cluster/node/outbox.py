"""What came of a lease on its way into the next part, and how long each side of the node was at it."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

from accelera.execution.cluster.contract import Part
from accelera.execution.cluster.on_gpu import Happened, OnGpu
from accelera.execution.cluster.packing import Done, pack_outcomes
from accelera.execution.executors.workers.raised import Raised, pack_error
from accelera.execution.watching.observer import Observer
from accelera.execution.work.pieces import Side


def _nothing() -> dict[Side, int]:
    return dict.fromkeys(Side, 0)


def _no_time() -> dict[Side, float]:
    return dict.fromkeys(Side, 0.0)


@dataclass(slots=True)
class _Gathered:
    done: Done = field(default_factory=list)
    retried: list[tuple[int, Raised]] = field(default_factory=list)
    splits: list[Happened] = field(default_factory=list)
    fallbacks: list[Happened] = field(default_factory=list)
    tasks: dict[Side, int] = field(default_factory=_nothing)
    busy_s: dict[Side, float] = field(default_factory=_no_time)

    def __bool__(self) -> bool:
        return bool(self.done or self.retried or self.splits or self.fallbacks)


@final
class Outbox(Observer):
    """Gathers outcomes from the threads that work on a lease.

    Parameters
    ----------
    workers
        Tasks that the node's processors run at once.
    gpu
        Name of the GPU that takes part; None: none does.
    apart
        Whether every outcome is pickled by itself, so that one that cannot be unpickled harms no other.
    """

    def __init__(self, workers: int, gpu: str | None = None, *, apart: bool = False) -> None:
        self._apart = apart
        self._workers = workers
        self._gpu = gpu
        self._gathered = _Gathered()
        self._at: dict[int, tuple[Side, float]] = {}
        self._lock = threading.Lock()

    def begin(self, side: Side) -> None:
        """Note that the calling thread, of ``side``, begins something."""
        with self._lock:
            self._at[threading.get_ident()] = side, time.perf_counter()

    def end(self) -> None:
        """Note that the calling thread is through with it."""
        with self._lock:
            self._count_time()
            del self._at[threading.get_ident()]

    def put(self, start: int, outcomes: Sequence[Any]) -> None:
        """Take what came of the tasks from index ``start`` on, from the thread that ran them."""
        with self._lock:
            self._gathered.tasks[self._count_time()] += len(outcomes)
            done = self._gathered.done
            if self._apart:
                done += [(start + position, [each]) for position, each in enumerate(outcomes)]
            elif done and done[-1][0] + len(done[-1][1]) == start:
                done[-1][1].extend(outcomes)
            else:
                done.append((start, list(outcomes)))

    def on_retry(self, index: int, error: BaseException, device: str) -> None:
        """Take note of an attempt that is followed by another."""
        raised = pack_error(error)
        with self._lock:
            self._gathered.retried.append((index, raised))

    def on_split(self, device: str, task_count: int, error: BaseException) -> None:
        """Take note that so many tasks at once did not fit the GPU."""
        raised = pack_error(error)
        with self._lock:
            self._gathered.splits.append((task_count, raised))

    def on_fallback(self, device: str, task_count: int, error: BaseException) -> None:
        """Take note that so many tasks went from the GPU to the processors."""
        raised = pack_error(error)
        with self._lock:
            self._gathered.fallbacks.append((task_count, raised))

    def part(self, *, last: bool) -> Part | None:
        """Return what there is since the last part; None when that is nothing."""
        with self._lock:
            if not self._gathered:
                return None
            found, self._gathered = self._gathered, _Gathered()
        seconds = found.busy_s[Side.CPU] / self._workers
        return Part(pack_outcomes(found.done), seconds, found.retried, last, self._on_gpu(found))

    def _on_gpu(self, found: _Gathered) -> OnGpu | None:
        if self._gpu is None:
            return None
        tasks, seconds = found.tasks[Side.GPU], found.busy_s[Side.GPU]
        return OnGpu(self._gpu, tasks, seconds, found.splits, found.fallbacks)

    def _count_time(self) -> Side:
        """Add the calling thread's time so far to that of its side, and return the side."""
        thread, now_s = threading.get_ident(), time.perf_counter()
        side, since_s = self._at[thread]
        self._gathered.busy_s[side] += now_s - since_s
        self._at[thread] = side, now_s
        return side
