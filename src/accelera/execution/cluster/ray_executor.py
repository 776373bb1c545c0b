"""``RayExecutor``: batches of work, and submitted calls, on the nodes of a Ray cluster."""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Executor, Future
from typing import Any, Final, NamedTuple, TypeVar, final

from accelera.errors import ArgumentError, StateError
from accelera.execution.cluster.contract import Cluster, pack_function
from accelera.execution.cluster.ray_cluster import RayCluster
from accelera.execution.cluster.ray_connection import closed_error
from accelera.execution.cluster.scheduler import LeaseScheduler, LeaseSize
from accelera.execution.executors.lanes import Closeable, Lane, outputs_of
from accelera.execution.kernel import FUNCTIONS_KEPT, LruDict, name_of
from accelera.execution.observability.telemetry import Telemetry
from accelera.execution.tasks.queue import DeviceKind, QueueOptions, Suspicion, TaskQueue, TaskRange
from accelera.execution.tasks.run import lane_thread, run_lane

Output = TypeVar("Output")

SHIPPED_KEPT: Final = 16
"""Functions of earlier batches that need not be shipped again."""


@final
class RayExecutor(Closeable):
    """Runs tasks on a Ray cluster that runs already: ``StrategyManager(cpu=RayExecutor())``.

    Every node has one agent, which runs as many tasks at once as the node has processors, on threads; where
    GPUs are reserved, the first of them takes from the same tasks, and the processors do what it fails at.
    Agents stay until ``close``. Tasks, outputs and functions travel pickled; a function is shipped to a node
    once.

    Parameters
    ----------
    address
        ``"HOST:6379"``, a ``Cluster``, or None: the cluster that the program is connected to, that
        RAY_ADDRESS names, or that this machine is part of. None is ever started.
    num_cpus
        Tasks at once on every node, and processors to reserve for them; None: as many as the node has, and
        none reserved.
    num_gpus
        GPUs to reserve on every node, or a fraction of one; nodes that have less take no part.
    resources
        Other resources of Ray to reserve on every node.
    device
        What computes beside the processors of every node, such as ``"cuda:0"``, counted among the GPUs that
        are reserved, or ``"sim:256MiB"``; ``"cpu"``: nothing. None: the first GPU that is reserved, if any.

    Raises
    ------
    BackendMissingError
        When Ray is not installed.
    ClusterError
        When no cluster answers, or its versions are others.
    UnknownNameError
        When no device is called so.
    TypeError, ValueError
        For what is no cluster or no amount, when a GPU is named and none reserved, or when something is
        asked of a ``Cluster`` that is there already.
    """

    name = "ray"

    def __init__(
        self,
        address: str | Cluster | None = None,
        *,
        num_cpus: int | None = None,
        num_gpus: float = 0.0,
        resources: dict[str, float] | None = None,
        device: str | None = None,
    ) -> None:
        asked = {"num_cpus": num_cpus, "num_gpus": num_gpus, "resources": resources, "device": device}
        if address is None or isinstance(address, str):
            address = RayCluster(
                address, num_cpus=num_cpus, num_gpus=num_gpus, resources=resources, device=device
            )
        elif not callable(getattr(address, "nodes", None)):
            raise ArgumentError(f"[ray] {address!r} is no cluster: give 'HOST:6379', a RayCluster, or None")
        elif given := [f"{name}={value!r}" for name, value in asked.items() if value]:
            raise ArgumentError(
                f"[ray] {', '.join(given)} beside {address!r}: what nodes give is settled when the cluster is"
                f" made; ask for it there"
            )
        self.cluster: Cluster = address
        self._closed = False
        self._shipped: LruDict[bytes, Any] = LruDict(SHIPPED_KEPT)
        self._sizes: LruDict[str, LeaseSize] = LruDict(FUNCTIONS_KEPT)
        self._lock = threading.Lock()

    @property
    def node_device(self) -> str | None:
        """Name of what nodes compute on: ``"cpu"`` without GPUs; None: the first that is reserved, if any."""
        device: str | None = getattr(self.cluster, "node_device", "cpu")
        return device

    def __repr__(self) -> str:
        return f"RayExecutor({type(self.cluster).__name__}{', closed' if self._closed else ''})"

    def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> list[Any]:
        """Return the outputs of all tasks, in their order; raises what the first that failed raised."""
        return outputs_of(self, tasks, process_fn)

    def work(self, queue: TaskQueue, *, caller: bool) -> None:
        """Hand the queue's tasks out in leases, and collect their results."""
        run_lane(queue, self._drive, "ray", caller=caller)

    def as_futures(self, *, reruns: bool = True) -> LaneExecutor:
        """Return the cluster as an ``Executor`` of ``concurrent.futures``.

        Without ``reruns`` a call that is lost with its node fails with ``UnknownOutcomeError``.
        Raises ClusterError after ``close``.
        """
        if self._closed:
            raise closed_error()
        return LaneExecutor(self, reruns=reruns)

    def close(self) -> None:
        """Let go of the nodes, and of the connection if it was made here; nothing runs afterwards."""
        self._closed = True
        self.cluster.close()

    def _drive(self, queue: TaskQueue) -> None:
        try:
            if self._closed:
                raise closed_error()
            size = self._sizes.get_or_make(name_of(queue.function), LeaseSize)
            LeaseScheduler(self.cluster, queue, self._ship(queue.function), size).run()
        except Exception as error:
            queue.abort(error)

    def _ship(self, function: Callable[..., Any]) -> Any:
        """Return what stands for ``function`` in the cluster."""
        packed = pack_function(function)
        with self._lock:
            return self._shipped.get_or_make(packed, lambda: self.cluster.put(packed))


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
        self._calls.abort(CancelledError("[ray] the calls were abandoned"))
        self._thread.join()


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
                raise StateError("[ray] this executor takes no calls after shutdown(); make another")
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

    def finish(self, start: int, outputs: Sequence[Any], device: str | None = None) -> None:
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

    def abort(self, error: BaseException) -> None:
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

    def _requeue_for_cpu(
        self,
        piece: TaskRange,
        failure: tuple[str, Exception],
        suspicion: Suspicion | None,
        *,
        permanent: bool,
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
