"""Executors and lanes: their protocols and checks, and the lanes that work on one batch together."""

from __future__ import annotations

import abc
import functools
import logging
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Protocol, TypeVar, final, runtime_checkable

from accelera.errors import ArgumentError
from accelera.execution.arguments import described
from accelera.execution.observability.telemetry import Telemetry
from accelera.execution.request import take_batch_error, take_failures
from accelera.execution.strategy.strategy import ExecutionStrategy, StrategyKind
from accelera.execution.tasks.batch import Batch
from accelera.execution.tasks.queue import DeviceKind, TaskQueue, do_nothing
from accelera.execution.tasks.run import lane_thread, run_batch, run_lane

Self = TypeVar("Self", bound="Closeable")


class Closeable(abc.ABC):
    """Something that holds processes or connections until it is closed."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release its processes or connections."""

    def __enter__(self: Self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()


PROCESSES: Final = "processes"
"""Worker processes, also where the default executor has sent a batch to them."""


@runtime_checkable
class CpuExecutor(Protocol):
    """Carries tasks out on the CPU (seed 002)."""

    def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> Sequence[Any]:
        """Return the outputs of all tasks, in their order."""


@runtime_checkable
class GpuExecutor(Protocol):
    """Carries tasks out on a GPU (seed 002).

    It may also have a ``name``; ``empty_cache()``, called after a failure; ``memory_total()``, which returns
    the bytes of device memory in all; and ``fitting(function)``, which returns how many tasks of the function
    should fit at once, or None while that is not known.
    """

    def execute_batch(self, tasks: Sequence[Any], process_fn: Callable[[Any], Any]) -> Sequence[Any]:
        """Return the outputs of all tasks, in their order; raises when the device fails."""

    def is_available(self) -> bool:
        """Return whether the device can be used now."""

    def memory_available(self) -> int:
        """Return the bytes of device memory that are free."""


@runtime_checkable
class Lane(Protocol):
    """Takes pieces of a batch until nothing is left for it.

    An executor that is a lane as well chooses the size of its pieces itself; others are given pieces through
    ``execute_batch``.
    """

    name: str
    """As results and logs call it: ``"cpu"``, ``"processes"``, ``"cuda:0"`` …"""

    def work(self, queue: TaskQueue, *, caller: bool) -> None:
        """Carry out what ``queue`` has for this side; return when nothing is left for it.

        With ``caller`` the calling thread may run tasks itself; without, it must only wait, so that tasks
        that never end can be left behind.
        """


_LOGGER = logging.getLogger("accelera.execution")


def is_available(executor: GpuExecutor) -> bool:
    """Return ``executor.is_available()``; False when that raises."""
    try:
        return bool(executor.is_available())
    except Exception:
        name = getattr(executor, "name", "gpu")
        _LOGGER.exception("is_available() of %s raised: taken for no", name)
        return False


CPU_METHODS: Final = ("execute_batch",)
GPU_METHODS: Final = ("execute_batch", "is_available", "memory_available")


def check_executors(cpu: Any, gpu: Any) -> None:
    """Raise TypeError where an executor is a class, or lacks a method that it must have."""
    _check_executor("cpu", cpu, CPU_METHODS)
    if gpu is not None:
        _check_executor("gpu", gpu, GPU_METHODS)


def _check_executor(side: str, executor: Any, methods: tuple[str, ...]) -> None:
    if isinstance(executor, type):
        name = executor.__name__
        raise ArgumentError(
            f"[StrategyManager] {side}={name}: a class, not an executor; make one, such as {name}()"
        )
    missing = [name for name in methods if not callable(getattr(executor, name, None))]
    if missing:
        raise ArgumentError(
            f"[StrategyManager] {side}={described(executor)} has no {'(), '.join(missing)}(): give the CPU's"
            " executor first, then the GPU's; strategy= says where work runs"
        )


SHARES = 4
"""Each range is this part of what remains, where a GPU takes from the same tasks."""


@final
class BridgeLane:
    """Gives an executor everything at once; piece by piece where a GPU pulls too, or memory is short."""

    def __init__(self, executor: CpuExecutor, name: str = "cpu") -> None:
        self.name = name
        self._executor = executor

    def work(self, queue: TaskQueue, *, caller: bool) -> None:
        """Carry out what there is for the CPU."""
        run_lane(queue, self._pull, "bridge", caller=caller)

    def _pull(self, queue: TaskQueue) -> None:
        while (piece := queue.take(DeviceKind.CPU, self._size(queue))) is not None:
            failed = run_batch(self._executor.execute_batch, queue, piece, self.name)
            if failed:
                queue.abort(failed[0][1])
                return
            del piece  # its tasks may be large, and the next ones long in coming

    @staticmethod
    def _size(queue: TaskQueue) -> int:
        wanted = queue.remaining // SHARES if queue.shared else queue.remaining
        return max(1, min(wanted, queue.limit.cpu or wanted))


def lane_of(executor: CpuExecutor) -> Lane:
    """Return an executor that sizes its own ranges, or another one through a bridge."""
    return executor if isinstance(executor, Lane) else BridgeLane(executor)


def outputs_of(lane: Lane, tasks: Sequence[Any], function: Callable[[Any], Any]) -> list[Any]:
    """Return the outputs of all tasks, in their order.

    Raises what the first task that failed raised, or what ended the lane; whatever ends it, nothing further
    is begun.
    """
    batch = Batch(tasks, function, Telemetry())
    try:
        lane.work(batch, caller=True)
    finally:
        batch.close()
    if batch.broken is not None:
        raise take_batch_error(batch)
    if batch.failures:
        raise take_failures(batch)[0].error
    return batch.outputs


def run_on_lanes(batch: Batch, cpu: Lane, gpu: Lane | None, strategy: ExecutionStrategy) -> None:
    """Return when ``batch`` is over; an interruption stops it and goes on to the caller."""
    if batch.over.is_set():
        return
    try:
        if gpu is None or strategy.kind is StrategyKind.CPU_ONLY:
            cpu.work(batch, caller=not batch.may_abandon_threads)
        elif strategy.kind is StrategyKind.GPU_ONLY:
            _gpu_first(batch, cpu, gpu)
        else:
            _run_both(batch, cpu, gpu)
    except BaseException:
        batch.stop("interrupted")
        batch.close()
        raise


def _run_both(batch: Batch, cpu: Lane, gpu: Lane) -> None:
    """Let both pull; the CPU also waits for what the GPU may leave to it."""
    beside = _LaneThread(batch, gpu)
    beside.start()
    cpu.work(batch, caller=not batch.may_abandon_threads)
    beside.wait()


def _gpu_first(batch: Batch, cpu: Lane, gpu: Lane) -> None:
    """Let the GPU do everything; the CPU begins when something is left to it."""
    beside = _LaneThread(batch, cpu)
    batch.request_cpu_lane = beside.start
    try:
        gpu.work(batch, caller=not batch.may_abandon_threads)
        beside.wait()
    finally:
        batch.request_cpu_lane = do_nothing


@final
class _LaneThread:
    """A lane that works in a thread of its own, from the first time that it is started."""

    def __init__(self, batch: Batch, lane: Lane) -> None:
        self._batch = batch
        self._thread = lane_thread(batch, functools.partial(lane.work, batch, caller=True), lane.name)
        self._started = False
        self._lock = threading.Lock()

    def start(self) -> None:
        """Let it begin, unless it has begun."""
        with self._lock:
            if not self._started:
                self._thread.start()
                self._started = True

    def wait(self) -> None:
        """Return when it has ended, or may be left behind."""
        if self._started:
            self._batch.wait([self._thread])
