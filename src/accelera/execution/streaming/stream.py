"""Stream of outputs, one after the other, while threads in the background carry the tasks out."""

from __future__ import annotations

import functools
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, TypeVar, final

from accelera.errors import UnfinishedError
from accelera.execution.arguments import OnError
from accelera.execution.executors.lanes import Closeable, Lane
from accelera.execution.observability.observer import Observer
from accelera.execution.observability.telemetry import Telemetry, log_stream, log_stream_end
from accelera.execution.request import StreamRequest
from accelera.execution.result import Ending, StreamReport, TaskFailure, noted
from accelera.execution.strategy.strategy import Decision, StrategyKind
from accelera.execution.streaming.queue import ArrivalBuffer, FailedOutput, ReorderBuffer, StreamQueue
from accelera.execution.streaming.thread_bound import is_thread_bound
from accelera.execution.streaming.window import Window
from accelera.execution.tasks.queue import GRACE_S, TOKEN_S
from accelera.execution.tasks.run import ThreadContext, lane_thread

SAMPLES_AT_ONCE: Final = 64
"""Number of samples that are learned from at once; bounds the samples kept, however long the stream."""
_NUMBERS: Final = itertools.count(1)

Learn = Callable[[Sequence[Any], float], None]
"""Keeps what samples tell of the devices' speed, and the seconds that they took."""


@final
class StreamTelemetry:
    """Telemetry of one stream: its report, samples and log lines.

    Parameters
    ----------
    queue
        The stream.
    decision
        Where it runs, and why.
    learn
        Learns how long tasks take.
    count
        Called at the end with what was seen, and whether the stream failed.
    """

    def __init__(
        self, queue: StreamQueue, decision: Decision, learn: Learn, count: Callable[..., None]
    ) -> None:
        self._queue, self._telemetry = queue, queue.telemetry
        self._decision = decision
        self._learn, self._count = learn, count
        self._number = next(_NUMBERS)
        self._began_s = self._learned_s = 0.0
        self._failure_counts = (0, 0)
        self._last: StreamReport | None = None

    def begin(self) -> None:
        """Note that the first output was requested."""
        self._began_s = self._learned_s = time.perf_counter()
        self._telemetry.streams(self._number, self._decision)
        log_stream(self._decision)

    def look(self) -> None:
        """Learn from what was done, when that is enough for a lesson."""
        if len(self._telemetry.samples) >= SAMPLES_AT_ONCE:
            self._learn_from_samples()

    def report(self) -> StreamReport:
        """Return what was done so far, and how it ended, if it did: then nothing changes any more."""
        return self._last or self._report_now(None, None)

    def closed_unstarted(self) -> None:
        """Note that the caller closed the stream before requesting an output."""
        self._last = self._report_now("closed", None)

    def end(self, ended_by: Ending, error: BaseException | None) -> StreamReport:
        """Learn, log, tell and count the end; return what was done."""
        self._learn_from_samples()
        self._last = report = self._report_now(ended_by, error)
        log_stream_end(report)
        self._count(self._telemetry, failed=error is not None)
        self._telemetry.streamed(self._number, report)
        return report

    def _report_now(self, ended_by: Ending | None, error: BaseException | None) -> StreamReport:
        queue, telemetry = self._queue, self._telemetry
        return StreamReport(
            self._decision,
            time.perf_counter() - self._began_s if self._began_s else 0.0,
            queue.settled,
            queue.failed,
            telemetry.fallen_back > 0,
            tuple(telemetry.device_errors),
            telemetry.shares(),
            telemetry.retries,
            telemetry.oom_splits,
            ended_by,
            error,
        )

    def _learn_from_samples(self) -> None:
        """Learn from the pieces since the last lesson, unless a task failed or was tried again meanwhile."""
        samples, now_s = self._telemetry.take_samples(), time.perf_counter()
        failure_counts, self._failure_counts = (
            self._failure_counts,
            (self._queue.failed, self._telemetry.retries),
        )
        passed_s, self._learned_s = now_s - self._learned_s, now_s
        if samples and failure_counts == self._failure_counts:
            self._learn(samples, min(passed_s, sum(seconds for _, _, seconds in samples)))


@final
class StreamThreads:
    """Threads that work on a stream until it is over: one draws the tasks, one works for each lane.

    Parameters
    ----------
    queue
        The tasks.
    first
        Who works on them from the beginning.
    then
        Who joins in when something is left that only the CPU can do; None: nobody.
    """

    def __init__(self, queue: StreamQueue, first: Sequence[Lane], then: Lane | None = None) -> None:
        self._queue = queue
        self._first, self._fallback_lane = first, then
        self._cpu = first[0] if then is None else then
        self._working = len(first)
        self._lanes: list[threading.Thread] = []
        draw = functools.partial(ThreadContext().run, queue.draw)
        self._source = threading.Thread(target=draw, name="accelera-source", daemon=True)
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the threads, unless the stream was stopped before."""
        self._queue.request_cpu_lane = self._start_fallback_lane
        with self._lock:
            if self._queue.stopped:
                return
            if not self._queue.draws_in_caller:
                self._source.start()
            for lane in self._first:
                self._start(lane)

    def wait(self) -> None:
        """Wait until no task is running; after the token was set or the time is over, tasks are abandoned.

        A source that blocks is abandoned too. A thread that runs a task itself does not wait.
        """
        if threading.get_ident() in self._queue.takers:
            return
        with self._lock:
            started = self._source.ident is not None
        for thread in self._lanes:  # one of them may start the last
            _join(thread, self._queue.is_hurried)
        if started:
            self._source.join(GRACE_S)

    def _start_fallback_lane(self) -> None:
        with self._lock:
            lane, self._fallback_lane = self._fallback_lane, None
            if lane is not None:
                self._working += 1
                self._start(lane)

    def _start(self, lane: Lane) -> None:
        thread = lane_thread(self._queue, functools.partial(self._carry_out, lane), lane.name)
        thread.start()
        self._lanes.append(thread)

    def _carry_out(self, lane: Lane) -> None:
        lane.work(self._queue, caller=True)
        with self._lock:
            self._working -= 1
            unfinished = lane is self._cpu or not self._working
        if unfinished:
            self._queue.lanes_returned()


def _join(thread: threading.Thread, hurried: Callable[[], bool]) -> None:
    """Wait for a thread; once ``hurried()`` holds, for at most ``GRACE_S`` seconds more."""
    since_s: float | None = None
    while thread.is_alive():
        if hurried():
            since_s = time.monotonic() if since_s is None else since_s
            if time.monotonic() - since_s >= GRACE_S:
                return
        thread.join(TOKEN_S)


Output = TypeVar("Output")


@final
class TaskStream(Closeable, Generic[Output]):
    """Yields index and output of every task; what is not asked for is not done beyond the window.

    It begins when the first output is asked for. With the last one, an exception, ``close()``, the end of a
    ``with`` block or when nobody holds it any more, it is over: no further task is begun, and those under way
    are waited for, in worker processes a quarter of a second. A source that blocks is left behind, and once
    the token was set a task that hangs as well.

    Parameters
    ----------
    queue
        Its tasks.
    threads
        Carry them out.
    telemetry
        Counts, logs and reports.
    on_error
        What becomes of a task that fails.
    """

    def __init__(
        self, queue: StreamQueue, threads: StreamThreads, telemetry: StreamTelemetry, on_error: OnError
    ) -> None:
        self._queue = queue
        self._threads = threads
        self._telemetry = telemetry
        self._on_error = on_error
        self._consumer_thread: int | None = None
        self._begun = self._over = False
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        report = self.report()
        state = report.ended_by or ("under way" if self._begun else "not begun")
        return f"<TaskStream: {report.task_count} tasks done, {report.failed_count} of them failed, {state}>"

    def __iter__(self) -> TaskStream[Output]:
        """Return itself."""
        return self

    def __next__(self) -> tuple[int, Output]:
        """Return the next index and its output, waiting for it."""
        self._consumer_thread = threading.get_ident()
        try:
            if not self._begun:
                self._begin()
            found = None if self._over else self._next()
        except BaseException as error:
            self._end("error", error)
            raise
        if found is None:
            self._end("cancelled" if self._queue.cancelled else "exhausted")
            raise StopIteration
        return found

    def report(self) -> StreamReport:
        """Return what has been done so far, and how the stream ended, once it has."""
        return self._telemetry.report()

    def close(self) -> None:
        """Begin no further task; wait for those under way."""
        self._end("closed")

    def __del__(self) -> None:
        if getattr(self, "_over", True) or sys.is_finalizing():
            return
        if self._consumer_thread == threading.get_ident():
            self.close()
        elif self._consumer_thread is not None:
            # Whichever thread collects garbage may be one that this stream waits for, or hold what it needs.
            threading.Thread(target=self.close, name="accelera-close", daemon=True).start()

    def _begin(self) -> None:
        with self._lock:
            begins = not (self._begun or self._over)
            self._begun = True
        if begins:
            self._telemetry.begin()
            self._threads.start()

    def _next(self) -> tuple[int, Any] | None:
        while (arrived := self._next_arrival()) is not None:
            self._telemetry.look()
            if not isinstance(arrived[1], FailedOutput):
                return arrived
            if self._on_error == "collect":
                return arrived[0], arrived[1].failure
            if self._on_error == "raise":
                raise _iterator_error(arrived[1].failure)
        return None

    def _next_arrival(self) -> tuple[int, Any] | None:
        try:
            return self._queue.next_output()
        except TimeoutError as late:
            if not self._queue.late:
                raise
            report = self.report()
            raise UnfinishedError(
                f"[stream] the next output was not there after {report.execution_time:.3g} s, when the time"
                f" was over; {report.task_count} tasks were done; give a longer timeout",
                result=report,
            ) from late

    def _end(self, ended_by: Ending, error: BaseException | None = None) -> None:
        with self._lock:
            if self._over:
                return
            self._over = True
        self._queue.stop()
        if not self._begun:
            self._telemetry.closed_unstarted()
        try:
            if self._begun and (error is None or isinstance(error, Exception)):
                self._threads.wait()
        finally:
            if self._begun:
                self._telemetry.end(ended_by, error)
            self._queue.close()


def open_stream(
    tasks: Iterable[Any],
    function: Callable[[Any], Any],
    request: StreamRequest,
    decision: Decision,
    lanes: tuple[Lane, Lane | None],
    observers: Sequence[Observer],
    learn: Learn,
    count: Callable[..., None],
) -> TaskStream[Any]:
    """Return a stream of ``tasks`` on the lanes of CPU and GPU, as far as ``decision`` uses them."""
    kind = decision.strategy.kind
    queue = StreamQueue(
        iter(tasks),
        function,
        Telemetry(observers),
        Window(request.window, request.memory_per_task),
        ReorderBuffer() if request.ordered else ArrivalBuffer(),
        request.queue_options(),
        shared=kind is StrategyKind.HYBRID,
        gpu_first=kind is StrategyKind.GPU_ONLY,
    )
    queue.draws_in_caller = is_thread_bound(tasks)
    cpu, gpu = lanes
    if gpu is None or not decision.strategy.uses_gpu:
        threads = StreamThreads(queue, [cpu])
    elif kind is StrategyKind.GPU_ONLY:
        threads = StreamThreads(queue, [gpu], then=cpu)
    else:
        threads = StreamThreads(queue, [cpu, gpu])
    return TaskStream(queue, threads, StreamTelemetry(queue, decision, learn, count), request.on_error)


def _iterator_error(failure: TaskFailure) -> Any:
    """Return the user's exception, StopIteration wrapped: an iterator that raised it would just end."""
    error = noted(failure)
    if not isinstance(error, StopIteration):
        return error
    raised = RuntimeError(
        f"[stream] {failure.note} raised StopIteration, which ends iterators: raise another"
    )
    raised.__cause__ = error
    return raised
