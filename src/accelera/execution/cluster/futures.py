"""``concurrent.futures`` executor on a cluster: submitted calls as a queue without an end."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Executor, Future
from typing import Any, NamedTuple, TypeVar, final

from accelera.execution.executors.contract import Lane
from accelera.execution.observability.telemetry import Telemetry
from accelera.execution.tasks.queue import DeviceKind, QueueOptions, Suspicion, TaskQueue, TaskRange
from accelera.execution.tasks.run import lane_thread


@final
class SubmittedCall(NamedTuple):
    """A function and its arguments."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def call(task: SubmittedCall) -> Any:
    """Return what the call returns."""
    return task.function(*task.args, **task.kwargs)


@final
class CallQueue(TaskQueue):
    """Calls that are submitted while others are carried out, each with a future.

    Parameters
    ----------
    reruns
        Whether a call whose attempt was lost may be begun again.
    """

    repairs = False
    uses_gpu = False

    def __init__(self, *, reruns: bool = True) -> None:
        super().__init__(call, Telemetry(), QueueOptions(reruns=reruns))
        self._futures: dict[int, Future[Any]] = {}
        """Of all calls that are not over, by index."""
        self._waiting: deque[TaskRange] = deque()
        self._remaining = self._count = 0
        self._closed = False
        self._broken: BaseException | None = None

    def put(self, task: SubmittedCall) -> Future[Any]:
        """Take a call in; return its future.

        Raises
        ------
        RuntimeError
            After ``close``, or what broke the executor down.
        """
        with self._turn:
            if self._broken is not None:
                raise self._broken
            if self._closed:
                raise RuntimeError("[ray] this executor takes no calls after shutdown(); make another")
            future: Future[Any] = Future()
            self._futures[self._count] = future
            self._waiting.append(TaskRange(self._count, [task]))
            self._remaining += 1
            self._count += 1
            self._turn.notify_all()
            return future

    def close(self, *, cancel: bool = False) -> None:
        """Take in no more; with ``cancel`` begin none of those that wait."""
        with self._turn:
            self._closed = True
            futures = list(self._futures.values()) if cancel else []
            self._turn.notify_all()
        for future in futures:
            future.cancel()

    @property
    def stopped(self) -> bool:
        """Whether no further call should be begun."""
        return self._broken is not None

    @property
    def remaining(self) -> int:
        """How many calls nobody has taken."""
        return self._remaining

    @property
    def left(self) -> int:
        """How many calls are not over."""
        return len(self._futures)

    def take(self, side: DeviceKind, count: int, *, wait: bool = True) -> TaskRange | None:
        """Return up to ``count`` calls; None after ``close`` when all are over, or now without ``wait``."""
        with self._turn:
            while self._broken is None:
                piece = self._next(max(count, 1))
                if piece is not None:
                    return piece
                if not wait or (self._closed and not self._futures):
                    return None
                self._turn.wait()
            return None

    def finish(self, start: int, outputs: Sequence[Any]) -> None:
        """Bring what the calls from index ``start`` on returned."""
        for index, output in enumerate(outputs, start):
            for future in self._settled(index):
                future.set_result(output)

    def fail(self, index: int, error: BaseException, device: str) -> None:
        """Bring what a call raised."""
        for future in self._settled(index):
            future.set_exception(error)

    def give_back(self, piece: TaskRange) -> None:
        """Return calls that were not begun."""
        with self._turn:
            self._put_back(piece)
            self._turn.notify_all()

    def break_down(self, error: BaseException) -> None:
        """Fail every call that is not over."""
        with self._turn:
            self._broken = error
            futures, self._futures = list(self._futures.values()), {}
            self._waiting.clear()
            self._remaining = 0
            self._turn.notify_all()
        for future in futures:
            if _begins(future):
                future.set_exception(error)

    def _is_over(self) -> bool:
        return self.stopped

    def _put_back(self, piece: TaskRange) -> None:
        self._waiting.appendleft(piece)
        self._remaining += len(piece.tasks)

    def _put_back_for_cpu(
        self,
        piece: TaskRange,
        failure: tuple[str, Exception],
        suspicion: Suspicion | None,
        *,
        for_good: bool,
    ) -> int:
        """Put calls back that the GPU of a node failed at; none counts as fallen back: no side was chosen."""
        self._put_back(piece)
        return 0

    def _settled(self, index: int) -> list[Future[Any]]:
        """Return the future of a call that is over; none when it has been failed with all others."""
        with self._turn:
            future = self._futures.pop(index, None)
            self._turn.notify_all()
        return [] if future is None else [future]

    def _next(self, count: int) -> TaskRange | None:
        """Return calls that follow one another and were not cancelled."""
        tasks: list[Any] = []
        start = 0
        while self._waiting and len(tasks) < count:
            piece = self._waiting[0]
            if tasks and piece.start != start + len(tasks):
                break
            self._waiting.popleft()
            self._remaining -= 1
            if len(piece.tasks) > 1:
                self._waiting.appendleft(piece.part(1, len(piece.tasks)))
            if self._is_wanted(piece.start):
                start = start if tasks else piece.start
                tasks.append(piece.tasks[0])
        return TaskRange(start, tasks) if tasks else None

    def _is_wanted(self, index: int) -> bool:
        """Tell a future that its call begins; let go of it, and return False, when it was cancelled."""
        if _begins(self._futures[index]):
            return True
        del self._futures[index]
        return False


def _begins(future: Future[Any]) -> bool:
    """Mark ``future`` as running, if it is not; False, after waking those who wait, when cancelled."""
    return future.running() or future.set_running_or_notify_cancel()


Output = TypeVar("Output")


@final
class LaneExecutor(Executor):
    """Runs what is submitted on the nodes of a cluster, as soon as one has room.

    Parameters
    ----------
    lane
        What hands the calls out.
    reruns
        Whether a call that was lost with its node may be begun again.
    """

    def __init__(self, lane: Lane, *, reruns: bool = True) -> None:
        self._calls = CallQueue(reruns=reruns)
        work = functools.partial(lane.work, self._calls, caller=True)
        self._thread = lane_thread(self._calls, work, "calls")
        self._thread.start()

    def submit(self, fn: Callable[..., Output], /, *args: Any, **kwargs: Any) -> Future[Output]:
        """Run ``fn(*args, **kwargs)`` on some node and return its future.

        Raises
        ------
        RuntimeError
            After ``shutdown``.
        ClusterError
            When the cluster has gone.
        """
        return self._calls.put(SubmittedCall(fn, args, kwargs))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; wait for those that were taken, or cancel the ones not begun."""
        self._calls.close(cancel=cancel_futures)
        if wait:
            self._thread.join()

    def abandon(self) -> None:
        """Take no more calls, end those under way, and return when nobody is at one any more."""
        self._calls.break_down(CancelledError("[ray] the calls were abandoned"))
        self._thread.join()
