"""Executor on worker processes: for functions that hold Python's lock, and for tasks that may crash."""

from __future__ import annotations

import signal
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, final

from accelera.errors import DeviceError, PoisonTaskError, TransferError, UnknownOutcomeError
from accelera.execution.arguments import check_workers
from accelera.execution.executors.lanes import PROCESSES, Closeable, outputs_of
from accelera.execution.executors.processes.delivery import OutputDelivery, is_delivering
from accelera.execution.executors.processes.errors import unpack_error
from accelera.execution.executors.processes.messages import (
    FUNCTION,
    STARTING,
    FunctionPayload,
    Part,
    WorkerReply,
    pack,
    unpack,
)
from accelera.execution.executors.processes.pool import (
    MOST_FAILED_STARTS,
    ProcessPool,
    WorkerDied,
)
from accelera.execution.executors.threads import THREADS
from accelera.execution.hardware.cpu_share import process_share, usable_cores
from accelera.execution.kernel import FUNCTIONS_KEPT, LruDict, identity_of, name_of
from accelera.execution.tasks.balance import TimedSize
from accelera.execution.tasks.queue import DeviceKind, Joinable, TaskQueue, TaskRange
from accelera.execution.tasks.run import in_context, run_lane, run_range

PIECE_S: Final = 50e-3
"""Seconds that a range should take; handing one out costs about a tenth of a millisecond."""
LEAST_S: Final = 2e-3
"""Seconds that a range should take at least, even at the end of a batch."""
MOST_DEATHS: Final = 2
"""A task that killed so many workers is not tried again."""


@final
class ProcessesExecutor(Closeable):
    """Runs tasks in worker processes, which start on first use and stay until ``close``.

    The function is sent to each worker once, so its module's globals last from piece to piece. A worker that
    dies costs what it was at: the task is tried once more by itself, and fails with ``PoisonTaskError`` when
    it kills a second worker. A batch whose time is over, that is cancelled or ended by an error, and a stream
    that is left before its end, have their late workers killed. Inside a worker the executor runs everything
    in the calling thread.

    Parameters
    ----------
    workers
        Number of processes; None: the usable cores.

    Raises
    ------
    ValueError
        When ``workers`` is below 1.
    """

    name = PROCESSES

    def __init__(self, workers: int | None = None) -> None:
        check_workers("ProcessesExecutor", workers)
        self._asked_workers = workers
        self.workers = workers or usable_cores()
        self._task_s: LruDict[str, float] = LruDict(FUNCTIONS_KEPT)
        self._make_pool()

    @property
    def started(self) -> bool:
        """Whether there are worker processes already."""
        return self._pool.ours and self._pool.started

    @property
    def process_ids(self) -> list[int]:
        """The worker processes that have been started."""
        return self._pool.process_ids if self._pool.ours else []

    def __repr__(self) -> str:
        return f"ProcessesExecutor({self.workers})"

    def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> list[Any]:
        """Return the outputs of all tasks, in their order; raises what the first that failed raised."""
        return outputs_of(self, tasks, process_fn)

    def work(self, queue: TaskQueue, *, caller: bool) -> None:
        """Carry out what there is for the CPU."""
        if not caller and is_delivering():
            # Only this thread may call a handler that it is in: it holds the handler's lock.
            self._carry_out(queue, may_leave=True)
        else:
            run_lane(queue, self._carry_out, "drivers", caller=caller)

    def _carry_out(self, queue: TaskQueue, may_leave: bool = False) -> None:
        """Run the batch; the calling thread delivers the output of its tasks."""
        if process_share() is not None:
            _run_inline(queue)
            return
        try:
            payload = FunctionPayload(queue.function, queue.retry)
        except TransferError as error:
            queue.abort(error)
            return
        if not self._pool.ours:
            self._make_pool()
        name = identity_of(queue.function)
        count = min(self.workers, max(queue.left, 1), queue.limit.cpu or self.workers)
        task_s = self._task_s.get(name)
        dispatcher = ProcessDispatcher(self._pool, queue, payload, count, task_s=task_s)
        dispatcher.run(may_leave=may_leave)
        self._remember(name, dispatcher)

    def task_s(self, function: Callable[..., Any]) -> float:
        """Return the seconds that a task of ``function`` took last, handing over included; 0: not known."""
        return self._task_s.get(identity_of(function)) or 0.0

    def close(self) -> None:
        """End the workers, those at work at once; a batch that runs ends with ``DeviceError``."""
        self._end()

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel as the number of workers: processes stay where they are."""
        return ProcessesExecutor, (self._asked_workers,)

    def _make_pool(self) -> None:
        self._pool = ProcessPool(self.workers)
        self._end = weakref.finalize(self, self._pool.close)

    def _remember(self, name: str, dispatcher: ProcessDispatcher) -> None:
        if not dispatcher.ran_tasks:
            return
        self._task_s.put(name, dispatcher.ran_s / dispatcher.ran_tasks)


def _run_inline(queue: TaskQueue) -> None:
    """Run all tasks in the calling thread: a worker process starts no workers of its own."""
    while (piece := queue.take(DeviceKind.CPU, 1)) is not None:
        run_range(queue, piece, PROCESSES)


_PackedReply = tuple[WorkerReply, Sequence[Part]]
"""A reply, and the parts of its outputs."""


@final
class _LostWorker(NamedTuple):
    """A worker that died, and the number of workers in a row that died before they were ready."""

    at: int
    status: int | None
    failed_starts: int


@final
class ProcessDispatcher:
    """One batch, driven by several threads.

    Parameters
    ----------
    pool
        The workers.
    queue
        The batch.
    payload
        Its function.
    drivers
        Number of threads that drive workers.
    task_s
        Seconds that a task of this function took before; None: not known.
    """

    def __init__(
        self,
        pool: ProcessPool,
        queue: TaskQueue,
        payload: FunctionPayload,
        drivers: int,
        *,
        task_s: float | None = None,
    ) -> None:
        self._pool = pool
        self._queue = queue
        self._payload = payload
        self._drivers = drivers
        self._task_s = task_s
        self._deaths: Counter[int] = Counter()
        self._delivery = OutputDelivery(self._stopped, lambda: pool.has_waiting_threads)
        self._lock = threading.Lock()
        self.ran_tasks = 0
        """How many tasks came to an end."""
        self.ran_s = 0.0
        """Seconds that their pieces took, handing out included, summed over all drivers."""

    def run(self, *, may_leave: bool) -> None:
        """Run the batch: drivers in threads, and the delivery of output in the calling thread.

        The calling thread drives no worker, so that a log handler or stream may run a batch itself. With
        ``may_leave`` it leaves late drivers behind once the batch is stopped.
        """
        drivers: list[Joinable] = []
        try:
            for _ in range(self._drivers):
                self._delivery.add_driver()
                drivers.append(THREADS.run(in_context(self._queue, self._drive)))
            self._delivery.run(until_stopped=may_leave)
        finally:
            self._delivery.close()
        if may_leave:
            self._queue.wait(drivers)
            return
        for driver in drivers:
            driver.join()

    def _drive(self) -> None:
        """Take pieces until nothing is left; an error of the workers ends the batch."""
        try:
            self._pull()
        except Exception as error:
            self._queue.abort(error)
        finally:
            self._delivery.remove_driver()

    def _pull(self) -> None:
        size = TimedSize(PIECE_S, self._drivers, least_s=LEAST_S, task_s=self._task_s)
        while True:
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
            if self._queue.stopped:
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
        outcome = self._run_in_worker(packed)
        # A handler of the caller may run a batch itself: this one holds no worker while it waits.
        self._delivery.wait_until_delivered()
        if outcome is None:
            return self._put_back(piece)
        if isinstance(outcome, _LostWorker):
            return self._handle_death(outcome, piece)
        reply, outputs = _unpack_outputs(*outcome)
        return self._settle(piece, reply, outputs, time.perf_counter() - began)

    def _run_in_worker(self, packed: Sequence[Part]) -> _PackedReply | _LostWorker | None:
        """Run packed tasks in a worker; None if the batch was stopped before a reply."""
        with self._pool.acquire(self._stopped) as slot:
            if slot is None:
                return None
            try:
                worker = self._pool.ready(slot, self._payload.reloads)
                replied = worker.run(self._payload, packed, self._stopped, self._delivery.put)
            except WorkerDied as death:
                slot.failed_starts += death.at in (STARTING, FUNCTION)
                return _LostWorker(death.at, death.status, slot.failed_starts)
            slot.failed_starts = 0
            return replied

    def _stopped(self) -> bool:
        return self._queue.sleep(0.0)

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
        if reply.unreadable == "function":
            raise TransferError(
                f"[processes] a worker cannot load {name_of(self._queue.function)} ({reply.why}): what it"
                f" refers to must be importable there; define it in a module, or run it on threads"
            )
        for position, raised in reply.retried:
            index = piece.start + position
            self._queue.telemetry.retried(index, unpack_error(raised, index), PROCESSES)
        apart = len({position for position, _ in (*reply.failed, *reply.unsendable)})
        whole = not apart and reply.done == len(piece.tasks)
        self._queue.telemetry.ran(PROCESSES, reply.done - apart, seconds, whole=whole)
        ended = self._deliver(piece, reply, outputs)
        if reply.done < len(piece.tasks):
            self._queue.give_back(piece.part(reply.done, len(piece.tasks)))
        return [], ended

    def _deliver(self, piece: TaskRange, reply: WorkerReply, outputs: Sequence[Any]) -> int:
        """Pass outputs and failures to the queue; return how many tasks ended."""
        failed = {position: unpack_error(raised, piece.start + position) for position, raised in reply.failed}
        for position, why in reply.unsendable:
            failed[position] = TransferError(_unpicklable_text(piece.start + position, "returned", why))
        begin = 0
        for position in [*sorted(failed), len(outputs)]:
            if begin < position:
                self._queue.finish(piece.start + begin, outputs[begin:position], PROCESSES)
            if position in failed:
                self._queue.fail(piece.start + position, failed[position], PROCESSES)
            begin = position + 1
        return reply.done

    def _unsendable_tasks(self, piece: TaskRange, why: str) -> tuple[list[TaskRange], int]:
        if len(piece.tasks) > 1:
            return _halves(piece), 0
        self._queue.fail(piece.start, TransferError(_unpicklable_text(piece.start, "is", why)), PROCESSES)
        return [], 1

    def _unreadable_outputs(self, piece: TaskRange, reply: WorkerReply) -> tuple[list[TaskRange], int]:
        """Find the output that cannot be unpickled here, where tasks may be done again."""
        done = piece.part(0, reply.done)
        if reply.done < len(piece.tasks):
            self._queue.give_back(piece.part(reply.done, len(piece.tasks)))
        if self._queue.reruns and reply.done > 1:
            return _halves(done), 0
        for index in range(done.start, done.stop):
            self._queue.fail(index, TransferError(_unpicklable_text(index, "returned", reply.why)), PROCESSES)
        return [], reply.done

    def _handle_death(self, lost: _LostWorker, piece: TaskRange) -> tuple[list[TaskRange], int]:
        """Return what to retry here after a worker died on ``piece``, and how many tasks ended."""
        if self._pool.closed:
            raise DeviceError("[processes] the executor was closed while a batch ran: close it afterwards")
        if lost.at in (STARTING, FUNCTION):
            return self._handle_failed_start(lost, piece)
        begun = max(0, min(lost.at + 1, len(piece.tasks)))
        if not self._queue.reruns and begun:
            self._fail_as_unknown(piece.part(0, begun), lost)
            self._queue.give_back(piece.part(begun, len(piece.tasks)))
            return [], begun
        if len(piece.tasks) > 1 and not 0 <= lost.at < len(piece.tasks):
            return _halves(piece), 0
        return self._retry_suspect(piece, max(0, min(lost.at, len(piece.tasks) - 1)), lost)

    def _retry_suspect(
        self, piece: TaskRange, position: int, lost: _LostWorker
    ) -> tuple[list[TaskRange], int]:
        """Try the task that a worker died on once more, by itself."""
        for part in (piece.part(0, position), piece.part(position + 1, len(piece.tasks))):
            if part.tasks:
                self._queue.give_back(part)
        index = piece.start + position
        with self._lock:
            self._deaths[index] += 1
            deaths = self._deaths[index]
        error = PoisonTaskError(
            f"[processes] task {index} killed {deaths} worker processes ({_exit_text(lost.status)}): it is"
            f" not tried again; run it by itself in a process that may die to see why"
        )
        if deaths < MOST_DEATHS:
            self._queue.telemetry.retried(index, error, PROCESSES)
            return [piece.part(position, position + 1)], 0
        self._queue.fail(index, error, PROCESSES)
        return [], 1

    def _fail_as_unknown(self, piece: TaskRange, lost: _LostWorker) -> None:
        for index in range(piece.start, piece.stop):
            error = UnknownOutcomeError(
                f"[processes] task {index} was with a worker process that died ({_exit_text(lost.status)}),"
                f" and rerun='never' forbids to run it again: look whether it was done"
            )
            self._queue.fail(index, error, PROCESSES)

    def _handle_failed_start(self, lost: _LostWorker, piece: TaskRange) -> tuple[list[TaskRange], int]:
        if lost.failed_starts < MOST_FAILED_STARTS:
            return [piece], 0
        at = "while loading the function" if lost.at == FUNCTION else "before they were ready"
        raise DeviceError(
            f"[processes] {lost.failed_starts} worker processes died {at} ({_exit_text(lost.status)}): see"
            f" what they wrote to stderr; threads run the same work in this process"
        )


def _unpack_outputs(reply: WorkerReply, parts: Sequence[Part]) -> tuple[WorkerReply, Sequence[Any]]:
    if not parts:
        return reply, ()
    try:
        return reply, unpack(parts)
    except Exception as error:
        why = f"unpickling it: {type(error).__name__}: {error}"
        return reply._replace(unreadable="outputs", why=why), ()


def _halves(piece: TaskRange) -> list[TaskRange]:
    middle = len(piece.tasks) // 2
    return [piece.part(0, middle), piece.part(middle, len(piece.tasks))]


def _unpicklable_text(index: int, verb: str, why: str) -> str:
    return (
        f"[processes] task {index} {verb} something that cannot be pickled ({why}): only what can be pickled"
        f" goes to another process and back; use plain data, or run it on threads"
    )


def _exit_text(status: int | None) -> str:
    if status is None or status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"
