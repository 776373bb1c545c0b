"""Queue of a stream: tasks drawn from an iterator as there is room, and outputs that wait for the caller."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol, final

from accelera.errors import DeviceError
from accelera.execution.observability.telemetry import Telemetry
from accelera.execution.result import TaskFailure
from accelera.execution.streaming.window import Window
from accelera.execution.tasks.balance import LoadBalancer
from accelera.execution.tasks.queue import (
    DeviceKind,
    FaultAttribution,
    QueueOptions,
    Suspicion,
    TaskQueue,
    TaskRange,
)

Arrival = tuple[int, Any, int]
"""Index, output, bytes that it counts."""


class FailedOutput(NamedTuple):
    """Marks a failed task among the outputs; needed because a ``TaskFailure`` may itself be an output."""

    failure: TaskFailure


class OutputBuffer(Protocol):
    """Keeps outputs until they are taken. Not thread-safe."""

    def put(self, index: int, output: Any, nbytes: int) -> None:
        """Keep an output."""

    def next(self) -> Arrival | None:
        """Return the next one; None while it is not there."""

    def is_ready(self) -> bool:
        """Return whether ``next`` would return an output."""


@final
class ArrivalBuffer:
    """Outputs in the order in which they were done."""

    def __init__(self) -> None:
        self._waiting: deque[Arrival] = deque()

    def put(self, index: int, output: Any, nbytes: int) -> None:
        """Keep an output."""
        self._waiting.append((index, output, nbytes))

    def next(self) -> Arrival | None:
        """Return the next one; None while there is none."""
        return self._waiting.popleft() if self._waiting else None

    def is_ready(self) -> bool:
        """Return whether ``next`` would return an output."""
        return bool(self._waiting)


@final
class ReorderBuffer:
    """Outputs in the order of their tasks."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[Any, int]] = {}
        self._next = 0

    def put(self, index: int, output: Any, nbytes: int) -> None:
        """Keep an output."""
        self._waiting[index] = output, nbytes

    def next(self) -> Arrival | None:
        """Return the next one; None while it is not there."""
        if self._next not in self._waiting:
            return None
        index = self._next
        self._next += 1
        return (index, *self._waiting.pop(index))

    def is_ready(self) -> bool:
        """Return whether ``next`` would return an output."""
        return self._next in self._waiting


_ITERATORS: Final[tuple[type, ...]] = (type(iter([])), type(iter(())), type(iter(range(0))))
"""Iterators of collections in memory: they never block, so many tasks can be drawn at once."""


CALLER_DRAWS: Final = 64
"""Number of tasks that the calling thread draws before it looks for an output."""


@final
class StreamQueue(TaskQueue):
    """Tasks from an iterator that several lanes carry out together.

    Parameters
    ----------
    tasks
        Drawn by the one thread that calls ``draw``; may block, so nothing else is held up by it.
    function
        The user's function of one task.
    telemetry
        Counts everything that happens, and tells observers.
    window
        How much may be in memory.
    outputs
        Where outputs wait for the caller.
    options
        See ``QueueOptions``; the deadline is of outputs that are waited for.
    shared
        Whether CPU and GPU take from the same tasks.
    gpu_first
        Whether the CPU takes only what the GPU leaves, and everything while the GPU is left alone.
    """

    draws_in_caller = False
    """Whether the thread that requests outputs draws the tasks, because only it may read their source."""

    def __init__(
        self,
        tasks: Iterator[Any],
        function: Callable[[Any], Any],
        telemetry: Telemetry,
        window: Window,
        outputs: OutputBuffer,
        options: QueueOptions | None = None,
        *,
        shared: bool = False,
        gpu_first: bool = False,
    ) -> None:
        super().__init__(function, telemetry, options)
        self.shared = shared
        self.failed = 0
        """Tasks whose function raised."""
        self.settled = 0
        """Tasks that are done, those that failed among them."""
        self.takers: set[int] = set()
        """The threads that have taken tasks."""
        self.late = False
        """Whether an output was not there in time."""
        self._tasks = tasks
        self._window = window
        self._outputs = outputs
        self._gpu_first = self._gpu_alone = gpu_first
        self._balancer = LoadBalancer(None, time.monotonic()) if shared else None
        self._prefetched: deque[Any] = deque()
        self._taken = self._requeued = self._drawn = self._reserved = self._reported = 0
        self._exhausted = self._stopped = self._taker_waits = False
        self._drawing, self._waits_for_room = True, False
        self._returned: deque[TaskRange] = deque()
        self._for_both: deque[TaskRange] = deque()
        self._for_cpu: deque[TaskRange] = deque()
        self._taken_over = 0
        self._gpu_failure: tuple[str, Exception] | None = None
        self._closed = False
        self._reporting = threading.Lock()
        self._room_freed, self._output_ready = (
            threading.Condition(self._lock),
            threading.Condition(self._lock),
        )
        self._error: BaseException | None = None

    @property
    def stopped(self) -> bool:
        """Whether no further task should be begun."""
        return self._stopped or self.cancelled

    @property
    def cancelled(self) -> bool:
        """Whether the token was set, or the time is over."""
        return self.late or (self._cancel is not None and self._cancel.is_set())

    def is_hurried(self) -> bool:
        """Return whether tasks in flight are abandoned: the token was set, or the deadline has passed."""
        return self.cancelled or self._time_left_s() == 0

    @property
    def remaining(self) -> int:
        """How many tasks may be in memory at once; those nobody has taken once the end is known."""
        return self._drawn - self._taken + self._requeued if self._exhausted else self._window.most

    @property
    def left(self) -> int:
        """The same as ``remaining``."""
        return self.remaining

    def draw(self) -> None:
        """Draw tasks while there is room for them, to the end of the stream; in a thread of its own."""
        error: BaseException | None = None
        try:
            while (count := self._await_room()) and self._draw_up_to(count):
                self._report_drawn()
        except BaseException as raised:
            error = raised
        self._finish_drawing(error)

    def _finish_drawing(self, error: BaseException | None) -> None:
        with self._turn:
            self._drawing, self._exhausted = False, True
            self._error = self._error or error
            self._window.draw(self._drawn - self._reserved)
            self._reserved = self._drawn
            self._wake_all()
        self._report_drawn()

    def _draw_in_caller(self) -> None:
        """Draw a few tasks in the thread that requests outputs."""
        with self._turn:
            count = self._reserve(min(self._window.room, CALLER_DRAWS))
        try:
            has_more = self._draw_up_to(count)
        except BaseException as error:
            self._finish_drawing(error)
            return
        if not has_more:
            self._finish_drawing(None)
            return
        with self._turn:
            self._drawing = False
            self._turn.notify_all()
        self._report_drawn()

    def _is_source_due(self) -> bool:
        """Wait until an output is available or tasks should be drawn; return whether to draw now."""
        with self._output_ready:
            while not (self.cancelled or self._exhausted or self._stopped or self._outputs.is_ready()):
                if self._should_draw():
                    return True
                self._wait_for_output()
        return False

    def _reserve(self, count: int) -> int:
        """Count tasks that are about to be drawn; the caller holds the lock."""
        self._window.draw(count)
        self._reserved += count
        self._drawing = True
        return count

    def take(self, side: DeviceKind, count: int, *, wait: bool = True) -> TaskRange | None:
        """Return up to ``count`` tasks; waits while there are none but some may yet be drawn or come back.

        Without ``wait`` only for the first that is drawn.
        """
        with self._turn:
            self.takers.add(threading.get_ident())
            piece = self._next_piece(side, max(count, 1), wait=wait)
        self._report_drawn()
        self._report_taken_over()
        return piece

    def finish(self, start: int, outputs: Sequence[Any], device: str | None = None) -> None:
        """Bring the outputs of the tasks from index ``start`` on."""
        self.telemetry.waits(-len(outputs))
        with self._turn:
            if self._closed:
                return
            if device is not None:
                self.telemetry.count_tasks(device, len(outputs))
            for index, output in enumerate(outputs, start):
                self._outputs.put(index, output, self._window.keep(output))
            proven = self._confirmed_suspicions(start, len(outputs))
            self._settle(len(outputs))
        self._report_faults(proven)

    def fail(self, index: int, error: BaseException, device: str) -> None:
        """Tell that the user's function raised ``error`` on a task."""
        failure = FailedOutput(TaskFailure(index, error, device))
        self.telemetry.waits(-1)
        with self._turn:
            if self._closed:
                return
            self._outputs.put(index, failure, self._window.keep(failure))
            self.telemetry.count_tasks(device, 1)
            self._attribution.refuted(index)
            self.failed += 1
            self._settle(1)
        self.telemetry.tell_failed(device)

    def give_back(self, piece: TaskRange) -> None:
        """Return tasks that were not begun."""
        with self._turn:
            self._requeue(piece, self._returned)

    def give_up_gpu(self, device: str, error: Exception) -> None:
        """Let the CPU take all tasks until the GPU asks for some again."""
        with self._turn:
            self._gpu_alone = False
            self._gpu_failure = device, error
            if self._balancer is not None:
                self._balancer.give_up_gpu()
            self._turn.notify_all()
        self._report_taken_over()
        self.request_cpu_lane()

    def abort(self, error: BaseException) -> None:
        """Tell that an executor itself failed."""
        with self._turn:
            self._error, self._stopped = error, True
            self._wake_all()

    def lanes_returned(self) -> None:
        """Tell that the last lane has returned; the stream fails if tasks are left."""
        with self._turn:
            if self._all_settled or self.stopped:
                return
        self.abort(
            DeviceError(
                "[stream] an executor returned although tasks were left: `Lane.work` must go on until"
                " `take` returns None"
            )
        )

    def stop(self) -> None:
        """Begin no further task."""
        with self._turn:
            self._stopped = True
            self._prefetched.clear()
            self._wake_all()

    def close(self) -> None:
        """Drop everything it holds, and ignore later results of abandoned threads; call it once stopped."""
        with self._turn:
            self._closed = True
            self._outputs, self._tasks = ArrivalBuffer(), iter(())
            for heap in (self._prefetched, self._returned, self._for_both, self._for_cpu):
                heap.clear()
            self._attribution, self._gpu_failure, self._error = FaultAttribution(), None, None

    def next_output(self) -> tuple[int, Any] | None:
        """Return the next index and its output, waiting for it; None at the end.

        Raises what broke the stream, after every output that was there before, and TimeoutError when one is
        not there in time.
        """
        while self.draws_in_caller and self._is_source_due():
            self._draw_in_caller()
        with self._output_ready:
            while not self.cancelled:
                arrived = self._outputs.next()
                if arrived is not None:
                    index, output, nbytes = arrived
                    self._window.let_go(nbytes)
                    if self._waits_for_room and self._should_draw():
                        self._room_freed.notify()
                    return index, output
                if self._all_settled or self._stopped:
                    if self._error is not None:
                        raise self._error
                    return None
                self._wait_for_output()
            return None

    def _requeue_for_cpu(
        self,
        piece: TaskRange,
        failure: tuple[str, Exception],
        suspicion: Suspicion | None,
        *,
        permanent: bool,
    ) -> int:
        if suspicion is not None:
            self._attribution.hold(piece.start, piece.stop, suspicion)
        self._requeue(piece, self._for_cpu if permanent else self._for_both)
        return len(piece.tasks)

    def _is_over(self) -> bool:
        return self._all_settled or self.stopped

    def _wait_for_output(self) -> None:
        """Wait until there may be an output; raises when the time is over."""
        if self._time_left_s() == 0:
            self.late = True
            raise TimeoutError
        self._output_ready.wait(self._wait_timeout_s())

    @property
    def _all_settled(self) -> bool:
        return self._exhausted and self.settled == self._drawn

    def _should_draw(self) -> bool:
        """Return whether to draw now: in batches, not task by task, unless few prefetched tasks are left."""
        room, drawn = self._window.room, self._window.drawn
        waiting = self.settled - (self._reserved - drawn)
        return room > 0 and (room >= drawn or 2 * waiting < drawn)

    def _await_room(self) -> int:
        """Wait for room in the window; return how many tasks to draw, 0 when the stream was stopped."""
        with self._room_freed:
            self._drawing = False
            self._turn.notify_all()
            self._waits_for_room = True
            while not (self._stopped or self._should_draw()):
                self._room_freed.wait()
            self._waits_for_room = False
            if self._stopped:
                return 0
            return self._reserve(self._window.room)

    def _draw_up_to(self, count: int) -> bool:
        """Draw up to ``count`` tasks, each available at once; return whether there may be more."""
        if isinstance(self._tasks, _ITERATORS) and not self._window.by_bytes:
            return self._draw_at_once(count)
        weigh = self._window.weigh if self._window.by_bytes else None
        for task in islice(self._tasks, count):
            self._drawn += 1
            self._prefetched.append(task)
            if self._taker_waits:
                with self._turn:
                    self._taker_waits = False
                    self._turn.notify_all()
            if self._stopped or (weigh is not None and weigh(task)):
                break
        else:
            return self._drawn == self._reserved
        with self._turn:
            self._window.draw(self._drawn - self._reserved)
            self._reserved = self._drawn
        return not self._stopped

    def _draw_at_once(self, count: int) -> bool:
        with self._turn:
            before = len(self._prefetched)
            self._prefetched.extend(islice(self._tasks, count))
            self._drawn += len(self._prefetched) - before
            self._taker_waits = False
            self._turn.notify_all()
            return self._drawn == self._reserved

    def _report_drawn(self) -> None:
        """Report drawn tasks to telemetry, before any of them is reported as done."""
        with self._reporting:
            with self._turn:
                reported, self._reported = self._reported, self._drawn
                waiting = self._reported - reported
            if waiting:
                self.telemetry.waits(waiting)

    def _report_taken_over(self) -> None:
        """Report tasks that the CPU took because the GPU, which was to do them, is not used."""
        if not self._taken_over:
            return
        with self._turn:
            count, gpu_failure = self._taken_over, self._gpu_failure
            if gpu_failure is None:
                return
            self._taken_over = 0
        if count:
            self.telemetry.fell_back(gpu_failure[0], count, gpu_failure[1])

    def _next_piece(self, side: DeviceKind, count: int, *, wait: bool) -> TaskRange | None:
        if side is DeviceKind.GPU:
            self._gpu_alone, self._gpu_failure = self._gpu_first, None
        while not self.stopped:
            allowed = self._allowed(side, count)
            piece = self._take_requeued(side, count) or self._take_prefetched(side, allowed)
            if piece is not None:
                return piece
            if self._all_settled or not (wait or (self._drawing and not self._taken)):
                return None
            if self._may_take_new(side):
                self._taker_waits = True
            if not (self._prefetched and self._may_take_new(side)):
                self._turn.wait()
        return None

    def _may_take_new(self, side: DeviceKind) -> bool:
        """Return whether this side may take prefetched tasks."""
        return side is DeviceKind.GPU or not self._gpu_alone

    def _allowed(self, side: DeviceKind, count: int) -> int:
        """Return how many tasks this side should take, so that neither side delays the other; at least 1."""
        if self._balancer is None:
            return count
        there, now_s = len(self._prefetched), time.monotonic()
        return max(1, self._balancer.allowed(side, threading.get_ident(), count, there, now_s))

    def _take_requeued(self, side: DeviceKind, count: int) -> TaskRange | None:
        for heap in (self._returned, self._for_both, self._for_cpu if side is DeviceKind.CPU else None):
            if heap:
                piece = heap.popleft()
                if len(piece.tasks) > count:
                    heap.appendleft(piece.part(count, len(piece.tasks)))
                    piece = piece.part(0, count)
                self._requeued -= len(piece.tasks)
                if heap is self._returned:
                    self._note_taken(side, len(piece.tasks))
                return piece
        return None

    def _take_prefetched(self, side: DeviceKind, count: int) -> TaskRange | None:
        if not (self._prefetched and self._may_take_new(side)):
            return None
        tasks = [self._prefetched.popleft() for _ in range(min(count, len(self._prefetched)))]
        if self._balancer is not None:
            self._balancer.took(side, threading.get_ident(), len(tasks), time.monotonic())
        piece = TaskRange(self._taken, tasks)
        self._taken += len(tasks)
        self._note_taken(side, len(tasks))
        return piece

    def _note_taken(self, side: DeviceKind, count: int) -> None:
        """Count tasks of the GPU that the CPU takes."""
        if self._gpu_first and side is DeviceKind.CPU:
            self._taken_over += count

    def _requeue(self, piece: TaskRange, heap: deque[TaskRange]) -> None:
        heap.append(piece)
        self._requeued += len(piece.tasks)
        if self._balancer is not None:
            self._balancer.returned(threading.get_ident(), len(piece.tasks))
        self._turn.notify_all()

    def _settle(self, count: int) -> None:
        self.settled += count
        self._output_ready.notify_all()
        if self._all_settled:
            self._turn.notify_all()

    def _wake_all(self) -> None:
        for who in (self._turn, self._room_freed, self._output_ready):
            who.notify_all()
