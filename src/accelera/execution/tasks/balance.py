"""Task ranges and their balance: who takes which indices, how many at once, and backup tasks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, final

from accelera.execution.strategy.rates import SHARE, DeviceRates
from accelera.execution.tasks.queue import DeviceKind

Range = tuple[int, int]


@final
class RangeQueue:
    """Indices from 0 up to ``count``, in one heap for both sides or in a share for each. Not thread-safe.

    Parameters
    ----------
    count
        Number of tasks.
    gpu_count
        The first so many are the GPU's and the others the CPU's; None: both take from all of them.
    first
        The indices below it are done already.
    """

    def __init__(self, count: int, gpu_count: int | None = None, first: int = 0) -> None:
        self._shared = gpu_count is None
        self._front, self._back = first, count
        self._gpu_end = count if gpu_count is None else max(gpu_count, first)
        self._cpu_front = self._gpu_end
        self._returned: deque[Range] = deque()
        self._for_both: deque[Range] = deque()
        self._for_cpu: deque[Range] = deque()
        self._waiting = self._taken_over = 0
        self._given_up = False

    def __len__(self) -> int:
        """Return the number of indices not taken yet; approximate while other threads take some."""
        if self._shared:
            return max(0, self._back - self._front) + self._waiting
        return self._gpu_end - self._front + self._back - self._cpu_front + self._waiting

    def take(self, side: DeviceKind, count: int) -> Range | None:
        """Return up to ``count`` indices as ``(start, stop)``; None when there is none for ``side``.

        With a ``count`` of 0 only of what came back, one at a time.
        """
        if self._returned:
            return self._take_requeued(side, max(count, 1))
        if self._for_both:
            return self._split(self._for_both, max(count, 1))
        if side is DeviceKind.CPU and self._for_cpu:
            return self._split(self._for_cpu, max(count, 1))
        if not count:
            return None
        if side is DeviceKind.CPU:
            return self._from_back(count) if self._shared else self._from_cpu_share(count)
        return self._from_front(count)

    def give_back(self, start: int, stop: int) -> None:
        """Put indices back for whichever side comes first."""
        self._returned.append((start, stop))
        self._waiting += stop - start

    def requeue_failed(self, start: int, stop: int, *, permanent: bool) -> None:
        """Requeue indices that a GPU failed at: ``permanent`` for the CPU alone, otherwise for both sides."""
        (self._for_cpu if permanent else self._for_both).append((start, stop))
        self._waiting += stop - start

    def give_up_gpu_share(self) -> int:
        """Open the GPU's share to both sides; return its number of indices, the first time only."""
        if self._shared or self._given_up:
            return 0
        self._given_up = True
        if self._front < self._gpu_end:
            self.give_back(self._front, self._gpu_end)
            self._front = self._gpu_end
        return sum(stop - start for start, stop in self._returned if start < self._gpu_end)

    def taken_over(self) -> int:
        """Return how many given-back indices of the GPU's share the CPU took; each counts once."""
        taken, self._taken_over = self._taken_over, 0
        return taken

    def _take_requeued(self, side: DeviceKind, count: int) -> Range:
        start, stop = self._split(self._returned, count)
        if side is DeviceKind.CPU and start < self._gpu_end and not (self._shared or self._given_up):
            self._taken_over += stop - start
        return start, stop

    def _split(self, heap: deque[Range], count: int) -> Range:
        start, stop = heap.popleft()
        if stop - start > count:
            heap.appendleft((start + count, stop))
            stop = start + count
        self._waiting -= stop - start
        return start, stop

    def _from_front(self, count: int) -> Range | None:
        limit = self._back if self._shared else self._gpu_end
        start, self._front = self._front, min(self._front + count, limit)
        return (start, self._front) if start < self._front else None

    def _from_back(self, count: int) -> Range | None:
        stop, self._back = self._back, max(self._back - count, self._front)
        return (self._back, stop) if self._back < stop else None

    def _from_cpu_share(self, count: int) -> Range | None:
        start = self._cpu_front
        self._cpu_front = min(start + count, self._back)
        return (start, self._cpu_front) if start < self._cpu_front else None


@final
class IndexSet:
    """A set of indices, kept as ranges in order."""

    def __init__(self, *ranges: Range) -> None:
        self._ranges = sorted(each for each in ranges if each[0] < each[1])

    def __iter__(self) -> Iterator[Range]:
        return iter(self._ranges)

    def __len__(self) -> int:
        """Return the number of indices."""
        return sum(stop - start for start, stop in self._ranges)

    def within(self, start: int, stop: int) -> list[Range]:
        """Return the ranges that are here of those from ``start`` up to ``stop``."""
        cut = [(max(low, start), min(high, stop)) for low, high in self._ranges]
        return [each for each in cut if each[0] < each[1]]

    def remove(self, start: int, stop: int) -> list[Range]:
        """Take the indices from ``start`` up to ``stop`` away; return those that were here."""
        found = self.within(start, stop)
        if found:
            below = [(low, min(high, start)) for low, high in self._ranges]
            above = [(max(low, stop), high) for low, high in self._ranges]
            self._ranges = sorted({each for each in (*below, *above) if each[0] < each[1]})
        return found

    def halves(self) -> list[Range]:
        """Return every range in two, where it has two indices."""
        middles = [(start, (start + stop) // 2, stop) for start, stop in self._ranges]
        parts = [part for start, middle, stop in middles for part in ((start, middle), (middle, stop))]
        return [(start, stop) for start, stop in parts if start < stop]


@final
class TimedSize:
    """Size of one worker's next piece, from the times of earlier ones. Not thread-safe: one for each worker.

    Parameters
    ----------
    target_s
        Seconds that a piece should take.
    workers
        How many share what remains.
    least_s
        Seconds below which a piece is not worth handing out, though the rest is shared less evenly then.
    task_s
        Seconds that a task takes, as far as is known; None: the first piece is one task.
    """

    def __init__(
        self, target_s: float, workers: int, *, least_s: float = 0.0, task_s: float | None = None
    ) -> None:
        self._target_s = target_s
        self._least_share = least_s / target_s
        self._shares = 2 * max(workers, 1)
        self._size = 1 if task_s is None else max(1, int(target_s / max(task_s, 1e-9)))

    def next(self, remaining: int) -> int:
        """Return a number of tasks, at least 1."""
        return max(1, min(self._size, max(remaining // self._shares, int(self._least_share * self._size))))

    def ran(self, task_count: int, seconds: float) -> None:
        """Learn from a piece; the size at most quadruples."""
        if task_count:
            fitting = int(self._target_s * task_count / max(seconds, 1e-9))
            self._size = max(1, min(fitting, 4 * max(task_count, self._size)))


@final
class BackupTasks:
    """Ranges in flight on each side, of which the other may run backup tasks (MapReduce). Not thread-safe."""

    def __init__(self) -> None:
        self._in_flight_by_side: dict[DeviceKind, dict[int, int]] = {side: {} for side in DeviceKind}
        """End of each piece by its start, in the order in which they were taken."""

    def __len__(self) -> int:
        """Return the number of pieces in flight."""
        return sum(map(len, self._in_flight_by_side.values()))

    def taken(self, side: DeviceKind, start: int, stop: int) -> None:
        """Note that ``side`` took the indices from ``start`` up to ``stop``."""
        self._in_flight_by_side[side][start] = stop

    def done(self, start: int, stop: int) -> None:
        """Note that these indices are settled, the first that were left of a piece."""
        for pieces in self._in_flight_by_side.values():
            end = pieces.pop(start, stop)
            if stop < end:
                pieces[stop] = end

    def returned(self, start: int, stop: int) -> None:
        """Note that these indices are no longer in flight."""
        for side, pieces in self._in_flight_by_side.items():
            self._in_flight_by_side[side] = {
                low: high
                for begin, end in pieces.items()
                for low, high in ((begin, min(end, start)), (max(begin, stop), end))
                if low < high
            }

    def take(self, side: DeviceKind, count: int, settled: Callable[[int], bool]) -> Range | None:
        """Return up to ``count`` indices that the other side took first and has not done; each once.

        The last of a range come first: its taker begins at the front.
        """
        others = self._in_flight_by_side[DeviceKind.GPU if side is DeviceKind.CPU else DeviceKind.CPU]
        while others:
            start, stop = next(iter(others.items()))
            while stop > start and settled(stop - 1):
                stop -= 1
            first = max(start, stop - max(count, 1))
            while first < stop and settled(first):
                first += 1
            if start < first < stop:
                others[start] = first
            else:
                del others[start]
            if first < stop:
                return first, stop
        return None


FIRST_SHARE = 16
"""While nothing is known of the GPU, it is given this part of the tasks to see how fast it is."""


class _InFlight(NamedTuple):
    side: DeviceKind
    task_count: int
    since_s: float


@final
class LoadBalancer:
    """Reduces the pieces that a side asks for, so that both sides end together. Not thread-safe.

    Parameters
    ----------
    pace
        How fast both sides are, as learned from earlier batches; None: found out.
    now_s
        When the batch begins, in seconds of any clock that only goes forward.
    """

    def __init__(self, pace: DeviceRates | None, now_s: float) -> None:
        self._learned = pace
        self._in_flight: dict[int, _InFlight] = {}
        self._tasks = {DeviceKind.CPU: 0, DeviceKind.GPU: 0}
        self._busy_s = {DeviceKind.CPU: 0.0, DeviceKind.GPU: 0.0}
        self._cpu_takers: set[int] = set()
        self._gpu_free_s = now_s + (pace.begin_s if pace is not None else 0.0)
        self._gpu_takes_part = True

    def give_up_gpu(self) -> None:
        """Let the CPU take whatever it asks for, until the GPU asks again."""
        self._gpu_takes_part = False

    def allowed(self, side: DeviceKind, taker: int, count: int, remaining: int, now_s: float) -> int:
        """Return how many of ``count`` tasks ``side`` may take now; 0: it should wait.

        ``taker`` tells the threads of a side apart; one that asks has ended what it took before.
        """
        self._settle(taker, now_s)
        if side is DeviceKind.GPU:
            self._gpu_takes_part = True
        if not remaining or not self._gpu_takes_part:
            return count
        pace = self._pace(now_s)
        if side is DeviceKind.CPU:
            left_s = abs(self._gpu_free_s - now_s) if self._gpu_is_busy() else 0.0
            return count if pace is None else min(count, pace.cpu_count(remaining, left_s))
        if pace is not None:
            return min(count, pace.gpu_count(remaining))
        begun = self._tasks[DeviceKind.GPU] > 0
        return min(count, max(1, int(SHARE * remaining) if begun else remaining // FIRST_SHARE))

    def took(self, side: DeviceKind, taker: int, task_count: int, now_s: float) -> None:
        """Note that a thread of ``side`` has begun so many tasks."""
        self._in_flight[taker] = _InFlight(side, task_count, now_s)
        if side is DeviceKind.CPU:
            self._cpu_takers.add(taker)
            return
        pace = self._pace(now_s)
        begin_s = pace.begin_s if pace is not None and not self._tasks[DeviceKind.GPU] else 0.0
        self._gpu_free_s = now_s + (0.0 if pace is None else begin_s + pace.gpu_s(task_count))

    def returned(self, taker: int, task_count: int) -> None:
        """Note that the thread ``taker`` put back so many of the tasks it has begun."""
        begun = self._in_flight.get(taker)
        if begun is not None:
            self._in_flight[taker] = begun._replace(task_count=max(0, begun.task_count - task_count))

    def _settle(self, taker: int, now_s: float) -> None:
        done = self._in_flight.pop(taker, None)
        if done is not None:
            self._tasks[done.side] += done.task_count
            self._busy_s[done.side] += now_s - done.since_s

    def _gpu_is_busy(self) -> bool:
        return (
            any(each.side is DeviceKind.GPU for each in self._in_flight.values())
            or not self._tasks[DeviceKind.GPU]
        )

    def _pace(self, now_s: float) -> DeviceRates | None:
        if self._learned is not None:
            return self._learned
        if not (self._tasks[DeviceKind.GPU] and self._cpu_takers):
            return None
        at_s = sum(now_s - each.since_s for each in self._in_flight.values() if each.side is DeviceKind.CPU)
        cpu_task_s = (self._busy_s[DeviceKind.CPU] + at_s) / max(self._tasks[DeviceKind.CPU], 1)
        gpu_task_s = self._busy_s[DeviceKind.GPU] / self._tasks[DeviceKind.GPU]
        if not (cpu_task_s > 0 and gpu_task_s > 0):
            return None
        return DeviceRates(cpu_task_s, len(self._cpu_takers), gpu_task_s)


class Offer(NamedTuple):
    """Answer to a side that asks for tasks."""

    found: Range | None
    """Indices to be carried out."""
    more: bool
    """Whether there may be something later, where nothing was found."""
    held: bool
    """Whether there is something that the other side is to take."""


@final
class Dispatcher:
    """Dispatches tasks to both sides. Not thread-safe, and without a clock of its own.

    Parameters
    ----------
    pending
        Tasks that no side has taken.
    backup
        Pieces in flight, of which an idle side may run backup copies; None: no backup copies.
    balancer
        How much a side may take; None: what it asks for.
    """

    def __init__(
        self, pending: RangeQueue, backup: BackupTasks | None = None, balancer: LoadBalancer | None = None
    ) -> None:
        self.pending = pending
        self.backup = backup
        self.balancer = balancer

    def offer(
        self,
        side: DeviceKind,
        taker: int,
        count: int,
        left: int,
        now_s: float,
        settled: Callable[[int], bool],
    ) -> Offer:
        """Return up to ``count`` tasks for a thread of ``side``, while ``left`` are not settled."""
        found = self._take_new(side, taker, count, now_s)
        if found is not None:
            return Offer(found, True, False)
        pending = len(self.pending)
        held = bool(pending) and self.balancer is not None
        if not left or (side is DeviceKind.GPU and left <= pending and not held):
            return Offer(None, False, False)
        found = None if self.backup is None else self.backup.take(side, count, settled)
        return Offer(found, True, held)

    def done(self, start: int, stop: int) -> None:
        """Note that these tasks are settled."""
        if self.backup is not None:
            self.backup.done(start, stop)

    def requeue(
        self, taker: int, start: int, stop: int, *, left: bool = False, permanent: bool = False
    ) -> None:
        """Requeue tasks of ``taker``; ``left``: a GPU failed at them; ``permanent``: for the CPU only."""
        if self.backup is not None:
            self.backup.returned(start, stop)
        if self.balancer is not None:
            self.balancer.returned(taker, stop - start)
        if left:
            self.pending.requeue_failed(start, stop, permanent=permanent)
        else:
            self.pending.give_back(start, stop)

    def give_up_gpu(self) -> int:
        """Open the GPU's share to both sides; return its number of tasks."""
        if self.balancer is not None:
            self.balancer.give_up_gpu()
        return self.pending.give_up_gpu_share()

    def taken_over(self) -> int:
        """Return how many tasks that the GPU gave back the CPU took; each counts once."""
        return self.pending.taken_over()

    def _take_new(self, side: DeviceKind, taker: int, count: int, now_s: float) -> Range | None:
        allowed = max(count, 1)
        if self.balancer is not None:
            allowed = self.balancer.allowed(side, taker, allowed, len(self.pending), now_s)
        found = self.pending.take(side, allowed)
        if found is None:
            return None
        if self.backup is not None:
            self.backup.taken(side, *found)
        if self.balancer is not None:
            self.balancer.took(side, taker, found[1] - found[0], now_s)
        return found
