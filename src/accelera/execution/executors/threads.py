"""Tasks on threads of this process: pieces of about two milliseconds, pulled by all and by the caller."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, final

from accelera.execution.checking import check_workers
from accelera.execution.cores import cores_here, one_blas_thread_each, usable_cores, working
from accelera.execution.executors.sizing import TimedSize
from accelera.execution.executors.whole import outputs_of
from accelera.execution.work.applying import apply, carry_out
from accelera.execution.work.contract import Work
from accelera.execution.work.guarding import guarded
from accelera.execution.work.pieces import Side

PIECE_S = 2e-3
"""What a piece should take; handing one out costs about two microseconds."""
INLINE_S = 2e-4
"""The caller works alone for so long before others are woken, and on if they would save no more than that."""


@final
class ThreadsExecutor:
    """Runs tasks on threads; best for functions that let other threads run, as NumPy's and PyTorch's do.

    Parameters
    ----------
    workers
        Number of threads, the caller's among them; None: the usable cores, and inside a task of another
        batch its share of them.
    """

    name = "cpu"

    def __init__(self, workers: int | None = None) -> None:
        check_workers("ThreadsExecutor", workers)
        self._asked_workers = workers
        self.workers = workers or usable_cores()
        self.caught: type[BaseException] = Exception
        """What a task may raise and end only itself; on a node nothing else would take it to the caller."""

    def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> list[Any]:
        """Return the outputs of all tasks, in their order; raises what the first that failed raised."""
        return outputs_of(self, tasks, process_fn)

    def inline(
        self, function: Callable[[Any], Any], tasks: Sequence[Any]
    ) -> tuple[list[Any], Exception | None, float]:
        """Run the first tasks in the calling thread; return their outputs, what one raised, and the seconds.

        Goes on to the end when others would save less of what is left than waking them takes.
        """
        outputs: list[Any] = []
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
        return outputs, error, spent_s

    def work(self, work: Work, *, caller: bool) -> None:
        """Carry out what there is for the CPU, with no more threads than tasks, or than memory allows."""
        workers = self._asked_workers or cores_here()
        count = min(workers, max(work.left, 1), work.room.cpu or workers)
        with one_blas_thread_each(count):
            threads = [self._start(work, count) for _ in range(count - 1 if caller else count)]
            if caller:
                self._pull(work, count)
            work.wait(threads)

    def _start(self, work: Work, count: int) -> threading.Thread:
        pull = guarded(work, functools.partial(self._pull, work, count))
        thread = threading.Thread(target=pull, name="accelera-cpu", daemon=True)
        thread.start()
        return thread

    def _pull(self, work: Work, count: int) -> None:
        with working(count):
            self._pull_as_one_of(work, count)

    def _pull_as_one_of(self, work: Work, count: int) -> None:
        size = TimedSize(PIECE_S, count)
        while (piece := work.take(Side.CPU, size.next(work.remaining))) is not None:
            began = time.perf_counter()
            done = carry_out(work, piece, self.name, self.caught)
            seconds = time.perf_counter() - began
            size.ran(done, seconds)
            del piece  # its tasks may be large, and the next ones long in coming
