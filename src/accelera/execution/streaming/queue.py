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
    """Stands where the output of a task that failed would be; a ``TaskFailure`` may be an output as well."""

    failure: TaskFailure


class OutputBuffer(Protocol):
    """Keeps outputs until they are taken. Not thread-safe."""

    def put(self, index: int, output: Any, nbytes: int) -> None:
        """Keep an output."""

    def next(self) -> Arrival | None:
        """Return the next one; None while it is not there."""


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


_ITERATORS: Final[tuple[type, ...]] = (type(iter([])), type(iter(())), type(iter(range(0))))
"""Of collections in memory: they never block, so that many tasks are drawn at once."""


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
        self._ahead: deque[Any] = deque()
        self._taken = self._came_back = self._drawn = self._promised = self._reported = 0
        self._exhausted = self._stopped = self._hungry = False
        self._drawing, self._waits_for_room = True, False
        self._returned: deque[TaskRange] = deque()
        self._for_both: deque[TaskRange] = deque()
        self._for_cpu: deque[TaskRange] = deque()
        self._taken_over = 0
        self._left_alone: tuple[str, Exception] | None = None
        self._closed = False
        self._reporting = threading.Lock()
        self._source, self._asked = threading.Condition(self._lock), threading.Condition(self._lock)
        self._error: BaseException | None = None

    @property
    def stopped(self) -> bool:
        """Whether no further task should be begun."""
        return self._stopped or self.cancelled

    @property
    def cancelled(self) -> bool:
        """Whether the token was set, or the time is over."""
        return self.late or (self._cancel is not None and self._cancel.is_set())

    @property
    def remaining(self) -> int:
        """How many tasks may be in memory at once; those nobody has taken once the end is known."""
        return self._drawn - self._taken + self._came_back if self._exhausted else self._window.most

    @property
    def left(self) -> int:
        """As many as remain."""
        return self.remaining

    def draw(self) -> None:
        """Draw tasks while there is room for them, to the end of the stream; in a thread of its own."""
        error: BaseException | None = None
        try:
            while (count := self._room_for()) and self._drew(count):
                self._report_drawn()
        except BaseException as raised:
            error = raised
        with self._turn:
            self._drawing, self._exhausted = False, True
            self._error = self._error or error
            self._window.draw(self._drawn - self._promised)
            self._promised = self._drawn
            self._wake_all()
        self._report_drawn()

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
            proven = self._proven(start, len(outputs))
            self._settle(len(outputs))
        self._blame(proven)

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
            self._back(piece, self._returned)

    def give_up_gpu(self, device: str, error: Exception) -> None:
        """Let the CPU take everything until the GPU asks again."""
        with self._turn:
            self._gpu_alone = False
            self._left_alone = device, error
            if self._balancer is not None:
                self._balancer.give_up_gpu()
            self._turn.notify_all()
        self._report_taken_over()
        self.call_cpu()

    def break_down(self, error: BaseException) -> None:
        """Tell that an executor itself failed."""
        with self._turn:
            self._error, self._stopped = error, True
            self._wake_all()

    def deserted(self) -> None:
        """Tell that the last lane has returned; the stream fails if tasks are left."""
        with self._turn:
            if self._over or self.stopped:
                return
        self.break_down(
            DeviceError(
                "[stream] an executor returned although tasks were left: `Lane.work` must go on until"
                " `take` returns None"
            )
        )

    def stop(self) -> None:
        """Begin no further task."""
        with self._turn:
            self._stopped = True
            self._ahead.clear()
            self._wake_all()

    def close(self) -> None:
        """Let go of whatever it holds, and of what those left behind may still bring; only once stopped."""
        with self._turn:
            self._closed = True
            self._outputs, self._tasks = ArrivalBuffer(), iter(())
            for heap in (self._ahead, self._returned, self._for_both, self._for_cpu):
                heap.clear()
            self._attribution, self._left_alone, self._error = FaultAttribution(), None, None

    def next_output(self) -> tuple[int, Any] | None:
        """Return the next index and its output, waiting for it; None at the end.

        Raises what broke the stream, after every output that was there before, and TimeoutError when one is
        not there in time.
        """
        with self._asked:
            while not self.cancelled:
                arrived = self._outputs.next()
                if arrived is not None:
                    index, output, nbytes = arrived
                    self._window.let_go(nbytes)
                    if self._waits_for_room and self._is_worth_drawing():
                        self._source.notify()
                    return index, output
                if self._over or self._stopped:
                    if self._error is not None:
                        raise self._error
                    return None
                self._wait_for_output()
            return None

    def _put_back_for_cpu(
        self,
        piece: TaskRange,
        failure: tuple[str, Exception],
        suspicion: Suspicion | None,
        *,
        for_good: bool,
    ) -> int:
        if suspicion is not None:
            self._attribution.hold(piece.start, piece.stop, suspicion)
        self._back(piece, self._for_cpu if for_good else self._for_both)
        return len(piece.tasks)

    def _is_over(self) -> bool:
        return self._over or self.stopped

    def _wait_for_output(self) -> None:
        """Wait until there may be an output; raises when the time is over."""
        if self._left_s() == 0:
            self.late = True
            raise TimeoutError
        self._asked.wait(self._patience_s())

    @property
    def _over(self) -> bool:
        return self._exhausted and self.settled == self._drawn

    def _is_worth_drawing(self) -> bool:
        """Whether to draw: while much can be taken still, not one by one: pieces are to be worth it."""
        room, drawn = self._window.room, self._window.drawn
        waiting = self.settled - (self._promised - drawn)
        return room > 0 and (room >= drawn or 2 * waiting < drawn)

    def _room_for(self) -> int:
        """Return how many tasks to draw, when there is room for some; 0 when nobody wants any more."""
        with self._source:
            self._drawing = False
            self._turn.notify_all()
            self._waits_for_room = True
            while not (self._stopped or self._is_worth_drawing()):
                self._source.wait()
            self._waits_for_room = False
            if self._stopped:
                return 0
            count = self._window.room
            self._window.draw(count)
            self._promised += count
            self._drawing = True
            return count

    def _drew(self, count: int) -> bool:
        """Draw up to so many tasks, each there to be taken at once; return whether there may be more."""
        if isinstance(self._tasks, _ITERATORS) and not self._window.by_bytes:
            return self._drew_at_once(count)
        weigh = self._window.weigh if self._window.by_bytes else None
        for task in islice(self._tasks, count):
            self._drawn += 1
            self._ahead.append(task)
            if self._hungry:
                with self._turn:
                    self._hungry = False
                    self._turn.notify_all()
            if self._stopped or (weigh is not None and weigh(task)):
                break
        else:
            return self._drawn == self._promised
        with self._turn:
            self._window.draw(self._drawn - self._promised)
            self._promised = self._drawn
        return not self._stopped

    def _drew_at_once(self, count: int) -> bool:
        with self._turn:
            before = len(self._ahead)
            self._ahead.extend(islice(self._tasks, count))
            self._drawn += len(self._ahead) - before
            self._hungry = False
            self._turn.notify_all()
            return self._drawn == self._promised

    def _report_drawn(self) -> None:
        """Say what was drawn before anybody says that it is done."""
        with self._reporting:
            with self._turn:
                reported, self._reported = self._reported, self._drawn
                waiting = self._reported - reported
            if waiting:
                self.telemetry.waits(waiting)

    def _report_taken_over(self) -> None:
        """Say what the CPU has taken because the GPU, which was to do it, is left alone."""
        if not self._taken_over:
            return
        with self._turn:
            count, left_alone = self._taken_over, self._left_alone
            if left_alone is None:
                return
            self._taken_over = 0
        if count:
            self.telemetry.fell_back(left_alone[0], count, left_alone[1])

    def _next_piece(self, side: DeviceKind, count: int, *, wait: bool) -> TaskRange | None:
        if side is DeviceKind.GPU:
            self._gpu_alone, self._left_alone = self._gpu_first, None
        while not self.stopped:
            allowed = self._allowed(side, count)
            piece = self._from_returned(side, count) or self._from_ahead(side, allowed)
            if piece is not None:
                return piece
            if self._over or not (wait or (self._drawing and not self._taken)):
                return None
            if self._may_begin(side):
                self._hungry = True
            if not (self._ahead and self._may_begin(side)):
                self._turn.wait()
        return None

    def _may_begin(self, side: DeviceKind) -> bool:
        """Whether this side may take what was drawn and never taken."""
        return side is DeviceKind.GPU or not self._gpu_alone

    def _allowed(self, side: DeviceKind, count: int) -> int:
        """Return how many this side should take, so that neither holds up the other; it took before."""
        if self._balancer is None:
            return count
        there, now_s = len(self._ahead), time.monotonic()
        return max(1, self._balancer.allowed(side, threading.get_ident(), count, there, now_s))

    def _from_returned(self, side: DeviceKind, count: int) -> TaskRange | None:
        for heap in (self._returned, self._for_both, self._for_cpu if side is DeviceKind.CPU else None):
            if heap:
                piece = heap.popleft()
                if len(piece.tasks) > count:
                    heap.appendleft(piece.part(count, len(piece.tasks)))
                    piece = piece.part(0, count)
                self._came_back -= len(piece.tasks)
                if heap is self._returned:
                    self._note_taken(side, len(piece.tasks))
                return piece
        return None

    def _from_ahead(self, side: DeviceKind, count: int) -> TaskRange | None:
        if not (self._ahead and self._may_begin(side)):
            return None
        tasks = [self._ahead.popleft() for _ in range(min(count, len(self._ahead)))]
        if self._balancer is not None:
            self._balancer.took(side, threading.get_ident(), len(tasks), time.monotonic())
        piece = TaskRange(self._taken, tasks)
        self._taken += len(tasks)
        self._note_taken(side, len(tasks))
        return piece

    def _note_taken(self, side: DeviceKind, count: int) -> None:
        """Count what the CPU takes that was the GPU's."""
        if self._gpu_first and side is DeviceKind.CPU:
            self._taken_over += count

    def _back(self, piece: TaskRange, heap: deque[TaskRange]) -> None:
        heap.append(piece)
        self._came_back += len(piece.tasks)
        if self._balancer is not None:
            self._balancer.returned(threading.get_ident(), len(piece.tasks))
        self._turn.notify_all()

    def _settle(self, count: int) -> None:
        self.settled += count
        self._asked.notify_all()
        if self._over:
            self._turn.notify_all()

    def _wake_all(self) -> None:
        for who in (self._turn, self._source, self._asked):
            who.notify_all()
