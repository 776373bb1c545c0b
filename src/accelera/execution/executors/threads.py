"""Executor on threads of this process, in ranges of about two milliseconds; idle threads are reused."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Final, final

from accelera.execution.arguments import check_workers
from accelera.execution.executors.lanes import outputs_of
from accelera.execution.hardware.cpu_share import (
    apply_thread_limits,
    cores_here,
    one_blas_thread_each,
    usable_cores,
    worker_core_share,
)
from accelera.execution.kernel import FUNCTIONS_KEPT, LruDict, identity_of
from accelera.execution.tasks.balance import TimedSize
from accelera.execution.tasks.queue import DeviceKind, Joinable, TaskQueue
from accelera.execution.tasks.retry import apply
from accelera.execution.tasks.run import in_context, run_range

PIECE_S = 2e-3
"""Seconds that a range should take; handing one out costs about two microseconds."""
INLINE_S = 2e-4
"""Seconds that the caller works alone before others are woken, and longer if they would save no more."""
IDLE_S = 30.0
"""Seconds that threads wait for another batch before they end."""
SIGNAL_POLL_S = 0.5
"""Seconds after which a wait is begun again, so that a signal which came as it began is handled."""


@final
class _PooledCall:
    """One call in a thread of ``ThreadPool``."""

    def __init__(self, do: Callable[[], None]) -> None:
        self.do: Callable[[], None] | None = do
        self.over = threading.Event()

    def join(self, timeout: float | None = None) -> None:
        """Wait until it is over, or for so many seconds."""
        if timeout is not None:
            self.over.wait(timeout)
            return
        while not self.over.wait(SIGNAL_POLL_S):
            pass

    def is_alive(self) -> bool:
        """Return whether it is still running."""
        return not self.over.is_set()


@final
class ThreadPool:
    """Daemon threads that wait for the next batch when one is over; as many as are needed at once.

    What a thread's tasks have allocated, the C library keeps for its next tasks: in a new thread, and in the
    main one, large blocks come from the system each time, page by page.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[SimpleQueue[_PooledCall]] = []
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset_after_fork)

    def run(self, do: Callable[[], None]) -> Joinable:
        """Begin ``do``, which raises nothing, in a thread that is idle or new."""
        run = _PooledCall(do)
        with self._lock:
            inbox = self._idle.pop() if self._idle else None
        if inbox is None:
            inbox = SimpleQueue()
            threading.Thread(target=self._serve, args=(inbox,), name="accelera-cpu", daemon=True).start()
        inbox.put(run)
        return run

    def _serve(self, inbox: SimpleQueue[_PooledCall]) -> None:
        while True:
            try:
                run = inbox.get(timeout=IDLE_S)
            except Empty:
                with self._lock:
                    if inbox not in self._idle:
                        continue
                    self._idle.remove(inbox)
                return
            do, run.do = run.do, None
            assert do is not None, "each is begun once"
            try:
                do()
                with self._lock:
                    self._idle.append(inbox)
            finally:
                run.over.set()
            del do, run  # nothing of a batch is kept while the next is waited for

    def _reset_after_fork(self) -> None:
        """Start over in a forked process, which has none of the threads."""
        self._lock = threading.Lock()
        self._idle = []


THREADS: Final = ThreadPool()
"""Of all executors of this process."""


@final
class ThreadsExecutor:
    """Runs tasks on threads; best for functions that let other threads run, as NumPy's and PyTorch's do.

    A batch of quick tasks begins in the calling thread, and ends there if that is soonest; others run beside
    it. Tasks of a function that is not known to be quick go to the threads at once.

    Parameters
    ----------
    workers
        Number of threads; None: the usable cores, and inside a task of another batch its share of them.
    """

    name = "cpu"

    def __init__(self, workers: int | None = None) -> None:
        check_workers("ThreadsExecutor", workers)
        self._asked_workers = workers
        self.workers = workers or usable_cores()
        self.caught: type[BaseException] = Exception
        """Exceptions that fail only their task; a node catches all, as nothing else would report them."""
        self._task_s: LruDict[str, float] = LruDict(FUNCTIONS_KEPT)

    def __repr__(self) -> str:
        return f"ThreadsExecutor({self.workers})"

    def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> list[Any]:
        """Return the outputs of all tasks, in their order; raises what the first that failed raised."""
        return outputs_of(self, tasks, process_fn)

    def inline(
        self, function: Callable[[Any], Any], tasks: Sequence[Any]
    ) -> tuple[list[Any], Exception | None, float]:
        """Run the first tasks in the calling thread; return their outputs, what one raised, and the seconds.

        Goes on to the end when others would save less of what is left than waking them takes. Runs none of
        several tasks where they are not known to be quick: nobody else would be at work meanwhile.
        """
        outputs: list[Any] = []
        if len(tasks) > 1 and not self._is_quick(function):
            return outputs, None, 0.0
        count, total = 1, len(tasks)
        gained = 1 - 1 / self.workers
        began = time.perf_counter()
        while True:
            more, error = apply(function, tasks[len(outputs) : len(outputs) + count], Exception)
            outputs += more
            spent_s = time.perf_counter() - began
            if error is not None or len(outputs) >= total:
                break
            if spent_s <= INLINE_S:
                count *= 2
            elif spent_s * (total - len(outputs)) * gained <= INLINE_S * len(outputs):
                count = total
            else:
                break
        if outputs:
            self._record_task_s(function, spent_s / len(outputs))
        return outputs, error, spent_s

    def work(self, queue: TaskQueue, *, caller: bool) -> None:
        """Carry out what there is for the CPU, with no more threads than tasks, or than memory allows."""
        workers = self._asked_workers or cores_here()
        count = min(workers, max(queue.left, 1), queue.limit.cpu or workers)
        with one_blas_thread_each(count):
            if caller and count == 1:
                self._pull(queue, count)
                queue.wait([])
            else:
                queue.wait([self._start(queue, count) for _ in range(count)])

    def _start(self, queue: TaskQueue, count: int) -> Joinable:
        return THREADS.run(in_context(queue, functools.partial(self._pull_in_pool, queue, count)))

    def _pull_in_pool(self, queue: TaskQueue, count: int) -> None:
        apply_thread_limits()
        self._pull(queue, count)

    def _pull(self, queue: TaskQueue, count: int) -> None:
        with worker_core_share(count):
            self._pull_ranges(queue, count)

    def _pull_ranges(self, queue: TaskQueue, count: int) -> None:
        size = TimedSize(PIECE_S, count)
        while (piece := queue.take(DeviceKind.CPU, size.next(queue.remaining))) is not None:
            began = time.perf_counter()
            done = run_range(queue, piece, self.name, self.caught)
            seconds = time.perf_counter() - began
            size.ran(done, seconds)
            if done:
                self._record_task_s(queue.function, seconds / done)
            del piece  # its tasks may be large, and the next ones long in coming

    def _record_task_s(self, function: Callable[[Any], Any], task_s: float) -> None:
        """Remember how long a task took last."""
        self._task_s.put(identity_of(function), task_s)

    def _is_quick(self, function: Callable[[Any], Any]) -> bool:
        task_s = self._task_s.get(identity_of(function))
        return task_s is not None and task_s <= INLINE_S
