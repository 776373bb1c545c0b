"""Executor on worker processes: for functions that hold Python's lock, and for tasks that may crash."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final, final

from accelera.errors import TransferError
from accelera.execution.arguments import asked_workers
from accelera.execution.executors.contract import Closeable
from accelera.execution.executors.lanes import outputs_of
from accelera.execution.executors.processes.dispatcher import NAME, ProcessDispatcher
from accelera.execution.executors.processes.messages import FunctionPayload
from accelera.execution.executors.processes.pool import ProcessPool
from accelera.execution.hardware.cpu_share import process_share, usable_cores
from accelera.execution.kernel import identity_of
from accelera.execution.tasks.queue import DeviceKind, TaskQueue
from accelera.execution.tasks.run import lane_thread, run_lane, run_range

_REMEMBERED: Final = 256
"""Functions whose time per task is kept."""


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
    workers, max_workers
        Number of processes; None: the usable cores.

    Raises
    ------
    ValueError
        When ``workers`` is below 1.
    """

    name = NAME

    def __init__(self, workers: int | None = None, *, max_workers: int | None = None) -> None:
        workers = asked_workers("ProcessesExecutor", workers, max_workers)
        self._asked_workers = workers
        self.workers = workers or usable_cores()
        self._task_s: dict[str, float] = {}
        self._lock = threading.Lock()
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
        run_lane(queue, self.carry_out, "drivers", caller=caller)

    def carry_out(self, queue: TaskQueue, *, leaves_unsendable: bool = False) -> bool:
        """Do the same with the calling thread as a driver; return whether everything could be sent.

        With ``leaves_unsendable`` tasks that cannot be sent, or whose outputs cannot, are given back and
        nothing more is taken, instead of failing them; so is a function that would find other constants in
        its modules there.
        """
        if process_share() is not None:
            _here(queue)
            return True
        try:
            payload = FunctionPayload(queue.function, queue.retry, checked=leaves_unsendable)
        except TransferError as error:
            if not leaves_unsendable:
                queue.break_down(error)
            return False
        if not self._pool.ours:
            self._make_pool()
        name = identity_of(queue.function)
        count = min(self.workers, max(queue.left, 1), queue.limit.cpu or self.workers)
        task_s = self._task_s.get(name)
        dispatcher = ProcessDispatcher(
            self._pool, queue, payload, count, task_s=task_s, leaves_unsendable=leaves_unsendable
        )
        threads = [lane_thread(queue, dispatcher.pull, "driver") for _ in range(1, count)]
        for thread in threads:
            thread.start()
        dispatcher.pull()
        for thread in threads:
            thread.join()
        self._remember(name, dispatcher)
        return not dispatcher.unsendable

    def task_s(self, function: Callable[..., Any]) -> float:
        """Return the seconds that a task of ``function`` took last, handing over included; 0: not known."""
        return self._task_s.get(identity_of(function), 0.0)

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
        with self._lock:
            self._task_s.pop(name, None)
            self._task_s[name] = dispatcher.ran_s / dispatcher.ran_tasks
            if len(self._task_s) > _REMEMBERED:
                del self._task_s[next(iter(self._task_s))]


def _here(queue: TaskQueue) -> None:
    """Run what there is in the calling thread, as a worker does that is asked to use workers."""
    while (piece := queue.take(DeviceKind.CPU, 1)) is not None:
        run_range(queue, piece, NAME)
