"""A lease as the sides of its node see it: a batch of work that ends in time and tells what is done."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

from accelera.execution.cluster.contract import Lease, Part
from accelera.execution.cluster.node.marks import Marks
from accelera.execution.cluster.node.outbox import Outbox
from accelera.execution.cluster.packing import unpack_tasks
from accelera.execution.executors.workers.raised import pack_error
from accelera.execution.pace import Pace
from accelera.execution.watching.watch import Watch
from accelera.execution.work.contract import Running
from accelera.execution.work.pacing import Pacing
from accelera.execution.work.pending import Pending
from accelera.execution.work.pieces import Piece, Side
from accelera.execution.work.room import ROOMY
from accelera.execution.work.sharing import Offer, Sharing
from accelera.execution.work.suspicion import Suspicion, Suspicions

PART_S = 0.1
"""Seconds between two parts."""
LOOK_AGAIN_S = 2e-3
"""A side that leaves the last tasks to the other looks so often whether they are being done."""

Permits = Mapping[Side, threading.Semaphore]


@final
class Leased:
    """Implements ``Work`` for one lease.

    When its time is over nobody takes what nobody had; what a GPU failed at for good meanwhile is still the
    processors', so that every lease gets something done.

    Parameters
    ----------
    workers
        Tasks that the node's processors run at once.
    permits
        How many threads of each side may be at work, for all leases together.
    gpu
        Name of the GPU that takes part; None: the processors do everything, from the first task on.
    pace
        How fast both sides are, where a GPU takes part; None: found out.
    """

    room = ROOMY
    repairs = True

    def __init__(
        self,
        lease: Lease,
        function: Callable[[Any], Any],
        workers: int,
        permits: Permits,
        gpu: str | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.function = function
        self.retry = lease.retry
        self.reruns = lease.reruns
        self.memory_per_task = lease.memory_per_task
        self.shared = gpu is not None
        self._outbox = Outbox(workers, gpu, apart=lease.alone or not lease.reruns)
        self.watch = Watch([self._outbox])
        self._lease = lease
        self._tasks = unpack_tasks(lease)
        self._permits = permits
        self._marks = Marks(lease.id, workers + self.shared)
        self._sharing = Sharing(
            Pending(len(self._tasks), None if self.shared else 0),
            pacing=Pacing(pace, time.monotonic()) if self.shared else None,
        )
        self._left = len(self._tasks)
        """How many tasks are to come to an end here, and have not."""
        self._holds: dict[int, Side] = {}
        self._suspicions = Suspicions()
        self._until_s: float | None = None
        self._late = False
        self._stopped = False
        self._ended = False
        self._error: BaseException | None = None
        self._turn = threading.Condition()

    @property
    def stopped(self) -> bool:
        """Whether no further task should be begun."""
        return self._stopped

    @property
    def remaining(self) -> int:
        """How many tasks nobody has taken."""
        return len(self._sharing.pending)

    @property
    def left(self) -> int:
        """How many tasks are to come to an end here, and have not."""
        return self._left

    def take(self, side: Side, count: int, *, wait: bool = True) -> Piece | None:
        """Return up to ``count`` tasks; None when there are no more, or the time is over."""
        self._put_down()
        while not self._is_over():
            if not self._permits[side].acquire(timeout=PART_S):
                continue
            with self._turn:
                offer = self._offer(side, count)
                if offer.found is not None:
                    return self._begun(side, *offer.found)
                self._permits[side].release()
                if not (offer.more and wait):
                    return None
                self._turn.wait(LOOK_AGAIN_S if offer.held else PART_S)
        return None

    def finish(self, start: int, outputs: Sequence[Any]) -> None:
        """Keep outputs for the next part."""
        self._outbox.put(start, outputs)
        with self._turn:
            proven = self._suspicions.confirmed(start, len(outputs)) if self._suspicions else ()
            self._settle(len(outputs))
        for error, device, blame in proven:
            self.watch.fell_back(device, 1, error)
            blame()

    def fail(self, index: int, error: BaseException, device: str) -> None:
        """Keep what the user's function raised for the next part."""
        self._outbox.put(index, [pack_error(error)])
        with self._turn:
            self._suspicions.refuted(index)
            self._settle(1)

    def give_back(self, piece: Piece) -> None:
        """Return tasks that were not begun: to both sides, or when the lease is to end to whoever gave it."""
        with self._turn:
            if self._late or self._stopped:
                self._settle(len(piece.tasks))
            else:
                self._sharing.back(*self._within(piece))
                self._turn.notify_all()

    def leave_to_cpu(
        self,
        piece: Piece,
        error: Exception,
        device: str,
        blame: Callable[[], None] | None = None,
        *,
        for_good: bool = True,
    ) -> None:
        """Return tasks that cannot be done on the GPU, and why."""
        with self._turn:
            if self._stopped or (self._late and not for_good):
                self._settle(len(piece.tasks))
            else:
                self._sharing.back(*self._within(piece), left=True, for_good=for_good)
                if blame is not None:
                    self._suspicions.hold(piece.start, piece.stop, Suspicion(error, device, blame))
                self._turn.notify_all()
        if blame is None:
            self.watch.fell_back(device, len(piece.tasks), error)

    def give_up_gpu(self, device: str, error: Exception) -> None:
        """Let the processors take whatever they ask for; the calling thread has nothing in hand."""
        self._put_down()
        with self._turn:
            self._sharing.give_up_gpu()
            self._turn.notify_all()

    def rest(self, seconds: float) -> bool:
        """Wait so long, or until the lease is over; return whether it is over."""
        with self._turn:
            return self._turn.wait_for(lambda: self._stopped or not self._left, seconds)

    def break_down(self, error: BaseException) -> None:
        """End the lease with ``error``, which ended what the calling thread was at."""
        self._put_down()
        with self._turn:
            self._error = error
        self.stop()

    def wait(self, threads: Sequence[Running]) -> None:
        """Return when ``threads`` have ended."""
        for thread in threads:
            thread.join()

    def stop(self) -> None:
        """Begin nothing more."""
        with self._turn:
            self._stopped = True
            self._turn.notify_all()

    def end(self) -> None:
        """Tell that no thread is at it any more, and that its marks are gone."""
        try:
            self._marks.close()
        finally:
            with self._turn:
                self._ended = True
                self._turn.notify_all()

    def parts(self) -> Iterator[Part]:
        """Yield what is done, every tenth of a second, until the lease is over."""
        ended = False
        while not ended:
            with self._turn:
                ended = self._turn.wait_for(lambda: self._ended, PART_S)
            part = self._outbox.part(last=ended and self._error is None)
            if part is not None:
                yield part
        if self._error is not None:
            raise self._error

    def _is_over(self) -> bool:
        with self._turn:
            self._end_in_time()
            return self._stopped or not self._left or not (self.shared or len(self._sharing.pending))

    def _end_in_time(self) -> None:
        """When the time is over, leave to whoever gave the lease what nobody has taken."""
        if self._late or self._until_s is None or time.monotonic() < self._until_s:
            return
        self._late = True
        anybodys = Side.GPU if self.shared else Side.CPU
        while (found := self._sharing.pending.take(anybodys, len(self._tasks))) is not None:
            self._settle(found[1] - found[0])

    def _offer(self, side: Side, count: int) -> Offer:
        self._end_in_time()
        if self._stopped:
            return Offer(None, more=False, held=False)
        count = 1 if self._lease.alone else count
        taker, now_s = threading.get_ident(), time.monotonic()
        offer = self._sharing.offer(side, taker, count, self._left, now_s, lambda index: False)
        return offer if self.shared else offer._replace(more=False)

    def _begun(self, side: Side, start: int, stop: int) -> Piece:
        """Return what the calling thread has taken, noted as under way."""
        if self._until_s is None:
            self._until_s = time.monotonic() + self._lease.limit_s
        piece = Piece(self._lease.start + start, self._tasks[start:stop])
        self._marks.begin(piece.start, piece.stop)
        self._holds[threading.get_ident()] = side
        self._outbox.begin(side)
        return piece

    def _put_down(self) -> None:
        """Let go of what the calling thread was at."""
        with self._turn:
            side = self._holds.pop(threading.get_ident(), None)
            if side is None:
                return
            self._outbox.end()
            self._marks.end()
        self._permits[side].release()

    def _settle(self, count: int) -> None:
        self._left -= count
        if self._left <= 0:
            self._turn.notify_all()

    def _within(self, piece: Piece) -> tuple[int, int]:
        return piece.start - self._lease.start, piece.stop - self._lease.start
