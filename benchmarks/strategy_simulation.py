"""Batches on a simulated machine: the clock is simulated, the executor's own code decides who takes what.

Eight CPU workers and a GPU; ranges are handed out by ``Dispatcher`` and ``LoadBalancer``, sized by
``TimedSize`` and ``BatchSizer``, taken over by ``BackupTasks``; strategies are of the tree or learned.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from accelera.execution.executors.threads import PIECE_S
from accelera.execution.faults.batch_size import BatchSizer
from accelera.execution.strategy.rates import DeviceRates
from accelera.execution.tasks.balance import BackupTasks, Dispatcher, LoadBalancer, RangeQueue, TimedSize
from accelera.execution.tasks.batch import LOOK_AGAIN_S
from accelera.execution.tasks.queue import DeviceKind

WORKERS = 8
HANDING_S = 0.0
"""Overhead of the CPU per piece: 0, as the best split has none either; measured, it is about 2 µs."""
BEGIN_S = 0.3
"""Start-up time of a cold GPU before its first piece."""
GPU = WORKERS
"""The GPU among the actors; the others are the CPU's workers."""


class Case(NamedTuple):
    """A batch and a machine."""

    count: int  # type: ignore[assignment]  # hides tuple.count
    task_s: float
    skew: float
    is_sorted: bool
    ratio: float
    """Speed of the GPU relative to all workers together."""
    launch_s: float
    fits: bool
    """Whether all tasks fit the GPU at once; otherwise a quarter does."""
    cold: bool

    @property
    def cap(self) -> int:
        return self.count if self.fits else max(1, self.count // 4)

    @property
    def begin_s(self) -> float:
        return BEGIN_S if self.cold else 0.0

    @property
    def gpu_share(self) -> float:
        """Time of a task on the GPU, relative to one worker."""
        return 1 / (self.ratio * WORKERS)

    def tasks(self, seed: int) -> list[float]:
        """Return the seconds of every task on one worker."""
        rng = random.Random(seed)
        mean = -self.skew * self.skew / 2
        tasks = [self.task_s * rng.lognormvariate(mean, self.skew) for _ in range(self.count)]
        return sorted(tasks) if self.is_sorted else tasks


def cases() -> Iterator[Case]:
    """Yield the 2,880 cases."""
    for each in itertools.product(
        (5, 30, 300, 3000),
        (1e-5, 1e-3, 1e-1),
        (0.0, 0.6, 1.5),
        (False, True),
        (0.1, 0.5, 2.33, 5.0, 20.0),
        (5e-5, 2e-3),
        (True, False),
        (False, True),
    ):
        yield Case(*each)


def gpu_s(case: Case, work_s: float, count: int) -> float:
    """Return the seconds of ``count`` tasks on the GPU, in pieces that fit, after it has begun."""
    return -(-count // case.cap) * case.launch_s + work_s * case.gpu_share


def best_split_s(case: Case, tasks: list[float]) -> float:
    """Return the seconds of the best static split: the first so many tasks on the GPU, the others on the CPU.

    Both sides take theirs in order; of very many splits every fiftieth is tried, then every fifth near it.
    """
    step = 1 if case.count <= 300 else 50
    coarse = {count: _split_s(case, tasks, count) for count in range(0, case.count + 1, step)}
    best = min(coarse, key=lambda count: coarse[count])
    near = range(max(0, best - step), min(case.count, best + step) + 1, max(1, step // 10))
    return min(*coarse.values(), *(_split_s(case, tasks, count) for count in near))


def alone_s(case: Case, tasks: list[float]) -> float:
    """Return the seconds of the better of both sides alone."""
    return min(_split_s(case, tasks, 0), _split_s(case, tasks, case.count))


def _split_s(case: Case, tasks: list[float], gpu_count: int) -> float:
    on_gpu = case.begin_s + gpu_s(case, sum(tasks[:gpu_count]), gpu_count) if gpu_count else 0.0
    return max(on_gpu, cpu_s(tasks[gpu_count:]))


def as_the_seed_does(case: Case, tasks: list[float], gpu_count: int) -> float:
    """Return the seconds of a fixed share on the GPU; what does not fit there sends everything to the CPU."""
    if not gpu_count or gpu_count <= case.cap:
        work_s = sum(tasks[:gpu_count])
        on_gpu = case.begin_s + case.launch_s + work_s * case.gpu_share if gpu_count else 0.0
        return max(on_gpu, cpu_s(tasks[gpu_count:]))
    return case.begin_s + case.launch_s + cpu_s(tasks)


def cpu_s(tasks: list[float]) -> float:
    """Return the seconds of the CPU's workers, each taking the next task when it is free."""
    free = [0.0] * WORKERS
    for seconds in tasks:
        heapq.heappush(free, heapq.heappop(free) + seconds)
    return max(free)


@dataclass
class Machine:
    """State of the simulation of one batch."""

    case: Case
    tasks: list[float]
    sharing: Dispatcher
    size: BatchSizer
    gpu_begins: bool = True
    """Whether the GPU must begin first."""
    settled: list[bool] = field(init=False)
    left: int = field(init=False)
    now_s: float = 0.0
    samples: list[tuple[DeviceKind, int, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.settled = [False] * len(self.tasks)
        self.left = len(self.tasks)
        self._sizes = [TimedSize(PIECE_S, WORKERS) for _ in range(WORKERS)]
        self._at: dict[int, tuple[int, int, float, bool]] = {}
        self._order = itertools.count()
        self._events: list[tuple[float, int, int]] = []

    def run(self, actors: Iterator[int]) -> float:
        """Return the seconds until every task is settled."""
        for actor in actors:
            self._wake(0.0, actor)
        while self.left:
            self.now_s, _, actor = heapq.heappop(self._events)
            self._finish(actor)
            if self.left:
                self._begin(actor)
        return self.now_s

    def _wake(self, at_s: float, actor: int) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), actor))

    def _finish(self, actor: int) -> None:
        if actor not in self._at:
            return
        start, stop, seconds, good = self._at.pop(actor)
        count = stop - start
        if actor != GPU:
            self._sizes[actor].ran(count, seconds)
        elif good:
            self.size.succeeded(count)
        else:
            self.size.ran_out(count)
            self.sharing.requeue(actor, start, stop)
        if good:
            for index in range(start, stop):
                self.left -= not self.settled[index]
                self.settled[index] = True

    def _begin(self, actor: int) -> None:
        side = DeviceKind.GPU if actor == GPU else DeviceKind.CPU
        pending = len(self.sharing.pending)
        if side is DeviceKind.GPU:
            wanted = pending or 1 << 30
            count = max(1, min(wanted, self.size.limit or wanted))
        else:
            count = self._sizes[actor].next(pending)
        offer = self.sharing.offer(side, actor, count, self.left, self.now_s, self.settled.__getitem__)
        if offer.found is not None:
            self._carry_out(actor, *offer.found)
        elif offer.more:
            self._wake(self.now_s + LOOK_AGAIN_S, actor)

    def _carry_out(self, actor: int, start: int, stop: int) -> None:
        work_s, good = sum(self.tasks[start:stop]), True
        if actor == GPU:
            good = stop - start <= self.case.cap
            seconds = self.case.launch_s + (work_s * self.case.gpu_share if good else 0.0)
            if self.gpu_begins:
                seconds, self.gpu_begins = seconds + self.case.begin_s, False
        else:
            seconds = work_s + HANDING_S
        self._at[actor] = start, stop, seconds, good
        self._wake(self.now_s + seconds, actor)


def pulled(
    case: Case, tasks: list[float], pace: DeviceRates | None, size: BatchSizer, *, again: bool
) -> float:
    """Return the seconds in which both sides pull, at a known ``pace``, or taking late tasks over."""
    sharing = Dispatcher(RangeQueue(len(tasks)), BackupTasks() if again else None, LoadBalancer(pace, 0.0))
    return Machine(case, tasks, sharing, size).run(iter([GPU, *range(WORKERS)]))


def on_the_cpu(case: Case, tasks: list[float]) -> float:
    """Return the seconds of the CPU alone."""
    sharing = Dispatcher(RangeQueue(len(tasks), 0))
    return Machine(case, tasks, sharing, BatchSizer()).run(iter(range(WORKERS)))


def on_the_gpu(case: Case, tasks: list[float], size: BatchSizer) -> float:
    """Return the seconds of the GPU alone, in pieces that fit as far as is known."""
    sharing = Dispatcher(RangeQueue(len(tasks), len(tasks)))
    return Machine(case, tasks, sharing, size).run(iter([GPU]))
