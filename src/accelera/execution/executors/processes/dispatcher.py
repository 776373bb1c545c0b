"""Dispatcher of one batch to worker processes; the tasks of a dead worker are tried again."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, final

from accelera.errors import DeviceError, PoisonTaskError, TransferError, UnknownOutcomeError
from accelera.execution.executors.contract import PROCESSES
from accelera.execution.executors.processes.messages import FunctionPayload, WorkerReply, unpack_error
from accelera.execution.executors.processes.pool import (
    MOST_FAILED_STARTS,
    CannotStart,
    ProcessPool,
    WorkerDied,
    WorkerSlot,
)
from accelera.execution.executors.processes.transport import FUNCTION, STARTING, pack
from accelera.execution.kernel import name_of
from accelera.execution.tasks.balance import TimedSize
from accelera.execution.tasks.queue import DeviceKind, TaskQueue, TaskRange

NAME: Final = PROCESSES
PIECE_S: Final = 50e-3
"""Seconds that a range should take; handing one out costs about a tenth of a millisecond."""
LEAST_S: Final = 2e-3
"""Seconds that a range should take at least, even at the end of a batch."""
MOST_DEATHS: Final = 2
"""A task that killed so many workers is not tried again."""


@final
class ProcessDispatcher:
    """One batch, driven by several threads.

    Parameters
    ----------
    crew
        The workers.
    work
        The batch.
    job
        Its function.
    drivers
        How many threads call ``pull``.
    task_s
        Seconds that a task of this function took before; None: not known.
    leaves_unsendable
        Whether tasks that cannot be sent, or whose outputs cannot, are given back instead of failing; then
        ``unsendable`` is set, and nothing more is taken.
    """

    def __init__(
        self,
        pool: ProcessPool,
        queue: TaskQueue,
        payload: FunctionPayload,
        drivers: int,
        *,
        task_s: float | None = None,
        leaves_unsendable: bool = False,
    ) -> None:
        self._pool = pool
        self._queue = queue
        self._payload = payload
        self._drivers = drivers
        self._task_s = task_s
        self._leaves_unsendable = leaves_unsendable
        self._deaths: Counter[int] = Counter()
        self._lock = threading.Lock()
        self.unsendable = False
        self.ran_tasks = 0
        """How many tasks came to an end."""
        self.ran_s = 0.0
        """Seconds that their pieces took, handing out included, summed over all drivers."""

    def pull(self) -> None:
        """Take pieces until nothing is left; what goes wrong with the workers ends the batch."""
        try:
            self._pull()
        except Exception as error:
            self._queue.break_down(error)

    def _pull(self) -> None:
        size = TimedSize(PIECE_S, self._drivers, least_s=LEAST_S, task_s=self._task_s)
        while not self.unsendable:
            piece = self._queue.take(DeviceKind.CPU, size.next(self._queue.remaining))
            if piece is None:
                return
            began = time.perf_counter()
            done = self._carry_out(piece)
            seconds = time.perf_counter() - began
            size.ran(done, seconds)
            with self._lock:
                self.ran_tasks += done
                self.ran_s += seconds

    def _carry_out(self, piece: TaskRange) -> int:
        """See to it that every task of ``piece`` is finished, failed or given back; return how many ended."""
        waiting, done = [piece], 0
        while waiting:
            part = waiting.pop()
            if self._queue.stopped or self.unsendable:
                self._queue.give_back(part)
                continue
            again, ended = self._run(part)
            waiting += reversed(again)
            done += ended
        return done

    def _run(self, piece: TaskRange) -> tuple[list[TaskRange], int]:
        """Run ``piece`` at once; return what is to be tried again here, and how many tasks ended."""
        began = time.perf_counter()
        try:
            packed = pack(piece.tasks)
        except Exception as error:
            return self._unsendable_tasks(piece, f"{type(error).__name__}: {error}")
        with self._pool.acquire(self._stopped) as slot:
            if slot is None:
                return self._put_back(piece)
            try:
                replied = self._pool.ready(slot).run(self._payload, packed, self._stopped)
            except WorkerDied as lost:
                return self._after(lost, piece, slot)
            except CannotStart:
                if self._leaves_unsendable:
                    return self._leave(piece)
                raise
            slot.failed_starts = 0
        if replied is None:
            return self._put_back(piece)
        reply, outputs = replied
        return self._settle(piece, reply, outputs, time.perf_counter() - began)

    def _stopped(self) -> bool:
        return self._queue.rest(0.0)

    def _leave(self, piece: TaskRange) -> tuple[list[TaskRange], int]:
        """Leave ``piece``, and all that follows, to others."""
        self.unsendable = True
        return self._put_back(piece)

    def _put_back(self, piece: TaskRange) -> tuple[list[TaskRange], int]:
        self._queue.give_back(piece)
        return [], 0

    def _settle(
        self, piece: TaskRange, reply: WorkerReply, outputs: Sequence[Any], seconds: float
    ) -> tuple[list[TaskRange], int]:
        if reply.unreadable == "tasks":
            return self._unsendable_tasks(piece, reply.why)
        if reply.unreadable == "outputs":
            return self._unreadable_outputs(piece, reply)
        if reply.unreadable == "function" and self._leaves_unsendable:
            return self._leave(piece)
        if reply.unreadable == "function":
            raise TransferError(
                f"[processes] a worker cannot load {name_of(self._queue.function)} ({reply.why}): what it"
                f" refers to must be importable there; define it in a module, or run it on threads"
            )
        for position, raised in reply.retried:
            index = piece.start + position
            self._queue.telemetry.retried(index, unpack_error(raised, index), NAME)
        apart = len({position for position, _ in (*reply.failed, *reply.unsendable)})
        whole = not apart and reply.done == len(piece.tasks)
        self._queue.telemetry.ran(NAME, reply.done - apart, seconds, whole=whole)
        ended = self._bring(piece, reply, outputs)
        if reply.done < len(piece.tasks):
            self._queue.give_back(piece.part(reply.done, len(piece.tasks)))
        return [], ended

    def _bring(self, piece: TaskRange, reply: WorkerReply, outputs: Sequence[Any]) -> int:
        """Tell the work of outputs and failures; return how many tasks ended."""
        failed = {position: unpack_error(raised, piece.start + position) for position, raised in reply.failed}
        left = 0
        for position, why in reply.unsendable:
            if self._leaves_unsendable and self._queue.reruns:
                self.unsendable, left = True, left + 1
                self._queue.give_back(piece.part(position, position + 1))
            else:
                failed[position] = TransferError(_unsendable(piece.start + position, "returned", why))
        apart = sorted({*failed, *(position for position, _ in reply.unsendable)})
        begin = 0
        for position in [*apart, len(outputs)]:
            if begin < position:
                self._queue.finish(piece.start + begin, outputs[begin:position])
            if position in failed:
                self._queue.fail(piece.start + position, failed[position], NAME)
            begin = position + 1
        return reply.done - left

    def _unsendable_tasks(self, piece: TaskRange, why: str) -> tuple[list[TaskRange], int]:
        if self._leaves_unsendable:
            return self._leave(piece)
        if len(piece.tasks) > 1:
            return _halves(piece), 0
        self._queue.fail(piece.start, TransferError(_unsendable(piece.start, "is", why)), NAME)
        return [], 1

    def _unreadable_outputs(self, piece: TaskRange, reply: WorkerReply) -> tuple[list[TaskRange], int]:
        """Find the output that cannot be unpickled here, where tasks may be done again."""
        done = piece.part(0, reply.done)
        if reply.done < len(piece.tasks):
            self._queue.give_back(piece.part(reply.done, len(piece.tasks)))
        if self._queue.reruns and self._leaves_unsendable:
            return self._leave(done)
        if self._queue.reruns and reply.done > 1:
            return _halves(done), 0
        for index in range(done.start, done.stop):
            self._queue.fail(index, TransferError(_unsendable(index, "returned", reply.why)), NAME)
        return [], reply.done

    def _after(self, lost: WorkerDied, piece: TaskRange, slot: WorkerSlot) -> tuple[list[TaskRange], int]:
        """Return what is left to do here after a worker died on ``piece``; others may take the rest."""
        if self._pool.closed:
            raise DeviceError("[processes] the executor was closed while a batch ran: close it afterwards")
        if lost.at in (STARTING, FUNCTION):
            return self._not_even_begun(lost, piece, slot)
        begun = max(0, min(lost.at + 1, len(piece.tasks)))
        if not self._queue.reruns and begun:
            self._unknown(piece.part(0, begun), lost)
            self._queue.give_back(piece.part(begun, len(piece.tasks)))
            return [], begun
        if len(piece.tasks) > 1 and not 0 <= lost.at < len(piece.tasks):
            return _halves(piece), 0
        return self._suspect(piece, max(0, min(lost.at, len(piece.tasks) - 1)), lost)

    def _suspect(self, piece: TaskRange, position: int, lost: WorkerDied) -> tuple[list[TaskRange], int]:
        """Try the task that a worker died on once more, by itself."""
        for part in (piece.part(0, position), piece.part(position + 1, len(piece.tasks))):
            if part.tasks:
                self._queue.give_back(part)
        index = piece.start + position
        with self._lock:
            self._deaths[index] += 1
            deaths = self._deaths[index]
        error = PoisonTaskError(
            f"[processes] task {index} killed {deaths} worker processes ({_ending(lost.status)}): it is not"
            f" tried again; run it by itself in a process that may die to see why"
        )
        if deaths < MOST_DEATHS:
            self._queue.telemetry.retried(index, error, NAME)
            return [piece.part(position, position + 1)], 0
        self._queue.fail(index, error, NAME)
        return [], 1

    def _unknown(self, piece: TaskRange, lost: WorkerDied) -> None:
        for index in range(piece.start, piece.stop):
            error = UnknownOutcomeError(
                f"[processes] task {index} was with a worker process that died ({_ending(lost.status)}), and"
                f" rerun='never' forbids to run it again: look whether it was done"
            )
            self._queue.fail(index, error, NAME)

    def _not_even_begun(
        self, lost: WorkerDied, piece: TaskRange, slot: WorkerSlot
    ) -> tuple[list[TaskRange], int]:
        slot.failed_starts += 1
        if slot.failed_starts < MOST_FAILED_STARTS:
            return [piece], 0
        if self._leaves_unsendable:
            return self._leave(piece)
        at = "while loading the function" if lost.at == FUNCTION else "before they were ready"
        raise DeviceError(
            f"[processes] {slot.failed_starts} worker processes died {at} ({_ending(lost.status)}): see"
            f" what they wrote to stderr; threads run the same work in this process"
        )


def _halves(piece: TaskRange) -> list[TaskRange]:
    middle = len(piece.tasks) // 2
    return [piece.part(0, middle), piece.part(middle, len(piece.tasks))]


def _unsendable(index: int, verb: str, why: str) -> str:
    return (
        f"[processes] task {index} {verb} something that cannot be pickled ({why}): only what can be pickled"
        f" goes to another process and back; use plain data, or run it on threads"
    )


def _ending(status: int | None) -> str:
    if status is None or status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"
