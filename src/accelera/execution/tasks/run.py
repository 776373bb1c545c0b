"""Execution of a task range: by the calling thread or an executor, with retries, in the caller's context."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, TypeVar, final

from accelera._extras import loaded_module
from accelera.errors import DeviceError
from accelera.execution.hardware.cpu_share import core_share, thread_share
from accelera.execution.kernel import GpuBatch, Kernel
from accelera.execution.tasks.queue import TaskQueue, TaskRange
from accelera.execution.tasks.retry import RetryLoop, apply
from accelera.execution.tasks.torch_modes import torch_modes

Returned = TypeVar("Returned")

_DEFAULT_STREAM = 0
"""The number of a device's default stream, which is current in new threads."""


@final
class ThreadContext:
    """The context variables of the thread that makes it, torch's modes, and its accelerator and stream.

    Modes are gradients, inference and autocast. NumPy's ``errstate`` and a ``decimal`` context are context
    variables. To be used by one thread.
    """

    __slots__ = ("_context", "_modes")

    def __init__(self) -> None:
        self._context = contextvars.copy_context()
        self._modes = [*torch_modes(), *_streams_of(loaded_module("torch"))]

    def run(self, do: Callable[[], Returned]) -> Returned:
        """Return ``do()``, called in the context of the thread that made this object."""
        return self._context.run(self._run, do)

    def _run(self, do: Callable[[], Returned]) -> Returned:
        with contextlib.ExitStack() as modes:
            for make, arguments in self._modes:
                modes.enter_context(make(*arguments))
            return do()


def _streams_of(torch: Any) -> list[tuple[Any, tuple[Any, ...]]]:
    """Return constructors that make current the streams and accelerator which differ from a new thread's.

    None while no accelerator is in use: a query would initialize it.
    """
    try:
        kind = next(kind for kind in ("cuda", "xpu") if getattr(torch, kind).is_initialized())
    except (AttributeError, StopIteration):
        return []
    from accelera.devices._internal import on_stream

    module = getattr(torch, kind)
    devices = [torch.device(kind, index) for index in range(module.device_count())]
    streams = [(torch.accelerator.current_stream(device), device) for device in devices]
    here = streams.pop(module.current_device())
    changed = [each for each in streams if each[0].stream_id != _DEFAULT_STREAM]
    if changed or here[0].stream_id != _DEFAULT_STREAM or here[1].index != 0:
        changed.append(here)
    return [(on_stream, each) for each in changed]


@final
class _ContextCall:
    """A call to run in another thread, with the context and the core share of the creating thread.

    A class and not a closure: a traceback keeps closures alive.
    """

    def __init__(self, queue: TaskQueue, do: Callable[[], object]) -> None:
        self._queue = queue
        self._do = do
        self._share = thread_share()
        self._context = ThreadContext()

    def __call__(self) -> None:
        try:
            with core_share(self._share):
                self._context.run(self._do)
        except BaseException as error:
            self._queue.abort(error)


def in_context(queue: TaskQueue, do: Callable[[], object]) -> Callable[[], None]:
    """Return ``do`` for a thread of its own, which has this thread's context and share of the cores.

    What it raises ends ``queue`` and is raised to the caller: others would wait for what the thread had.
    """
    return _ContextCall(queue, do)


def lane_thread(queue: TaskQueue, do: Callable[[], object], name: str) -> threading.Thread:
    """Return a thread, not started yet, in which ``do`` works on ``queue`` as ``in_context`` says."""
    return threading.Thread(target=in_context(queue, do), name=f"accelera-{name}", daemon=True)


def run_lane(queue: TaskQueue, pull: Callable[[TaskQueue], object], name: str, *, caller: bool) -> None:
    """Call ``pull`` here, or without ``caller`` in a thread that may be left behind while this one waits."""
    if caller:
        pull(queue)
        return
    thread = lane_thread(queue, functools.partial(pull, queue), name)
    thread.start()
    queue.wait([thread])


@final
class _RangeLoop(RetryLoop):
    """A range in the calling thread: what raises ``caught`` is retried or fails alone, the others go on."""

    def __init__(
        self, queue: TaskQueue, piece: TaskRange, device: str, caught: type[BaseException], began: float
    ) -> None:
        super().__init__(len(piece.tasks))
        self._queue = queue
        self._piece = piece
        self._device = device
        self._caught = caught
        self._began = began

    @property
    def stopped(self) -> bool:
        return self._queue.stopped

    def attempt(self, start: int) -> tuple[int, BaseException | None]:
        queue = self._queue
        return self.record_outcomes(start, *apply(queue.function, self._piece.tasks[start:], self._caught))

    def record_outcomes(
        self, start: int, outputs: list[Any], error: BaseException | None
    ) -> tuple[int, BaseException | None]:
        """Finish the tasks that have outputs; return how many there are, and what the next one raised."""
        queue, piece = self._queue, self._piece
        seconds, self._began = time.perf_counter() - self._began, time.perf_counter()
        if outputs or error is not None:
            queue.telemetry.ran(self._device, len(outputs), seconds, whole=len(outputs) == len(piece.tasks))
        if outputs:
            queue.finish(piece.start + start, outputs, self._device)
        return len(outputs), error

    def retry_or_fail(self, position: int, error: BaseException, attempts: int) -> bool:
        return self._queue.retry_or_fail(self._piece.start + position, error, self._device, attempts)

    def pause(self, attempts: int) -> None:
        self._queue.pause(attempts)


def run_range(
    queue: TaskQueue, piece: TaskRange, device: str, caught: type[BaseException] = Exception
) -> int:
    """Run the user's function on every task of ``piece``; return how many came to an end.

    A task that raises ``caught`` is retried or fails, the others go on; what was not begun is given back.
    """
    if queue.stopped:
        queue.give_back(piece)
        return 0
    began = time.perf_counter()
    outputs, error = apply(queue.function, piece.tasks, caught)
    if error is None:  # the usual case: no loop
        queue.telemetry.ran(device, len(outputs), time.perf_counter() - began)
        queue.finish(piece.start, outputs, device)
        return len(outputs)
    loop = _RangeLoop(queue, piece, device, caught, began)
    done = loop.run(loop.record_outcomes(0, outputs, error))
    del error
    if done < len(piece.tasks):
        queue.give_back(piece.part(done, len(piece.tasks)))
    return done


@final
@dataclass(frozen=True, slots=True)
class TaskError:
    """Exception that the user's function raised on one task."""

    error: Exception


@final
@dataclass(frozen=True, slots=True)
class CatchingFunction:
    """Calls a function of one task; returns what it raises as ``TaskError``. Picklable if the function is."""

    function: Callable[[Any], Any]

    @property
    def batch(self) -> GpuBatch | None:
        """The function's form for many tasks at once, if it has one."""
        return self.function.batch if isinstance(self.function, Kernel) else None

    def __call__(self, task: Any) -> Any:
        """Return the output of one task, or what was raised."""
        try:
            return self.function(task)
        except Exception as error:
            return TaskError(error)


ExecuteBatch = Callable[[Sequence[Any], Callable[[Any], Any]], Iterable[Any]]
Failed = tuple[TaskRange, Exception]


def run_batch(
    execute_batch: ExecuteBatch,
    queue: TaskQueue,
    piece: TaskRange,
    device: str,
    is_device_error: Callable[[Exception], bool] = lambda error: False,
) -> list[Failed]:
    """Run ``piece`` through ``execute_batch``; tasks that raised are tried again together.

    Returns the parts that are neither finished nor failed: those on which ``execute_batch`` itself raised,
    and those where the user's function met an error of the device.
    """
    failed: list[Failed] = []
    waiting, attempts = [piece], 1
    while waiting:
        raised: list[Failed] = []
        for part in waiting:
            began = time.perf_counter()
            try:
                # A bridge owns its list: it may empty it.
                tasks = part.tasks.copy() if isinstance(part.tasks, list) else part.tasks
                outcomes = _as_list(execute_batch(tasks, CatchingFunction(queue.function)), part, device)
                del tasks
            except Exception as error:
                queue.telemetry.ran(device, 0, time.perf_counter() - began, whole=False)
                failed.append((part, error))
            else:
                raised += _finish_outcomes(queue, part, outcomes, device, time.perf_counter() - began)
        failed += [each for each in raised if is_device_error(each[1])]
        waiting = _tasks_to_retry(
            queue, [each for each in raised if not is_device_error(each[1])], device, attempts
        )
        attempts += 1
    return _merge_neighbours(failed)


def _tasks_to_retry(queue: TaskQueue, raised: list[Failed], device: str, attempts: int) -> list[TaskRange]:
    """Return, after the pause, the tasks that are to be tried again; the others fail for good."""
    again = [piece for piece, error in raised if queue.retry_or_fail(piece.start, error, device, attempts)]
    if again:
        queue.pause(attempts)
    if not queue.stopped:
        return again
    for piece in again:
        queue.give_back(piece)
    return []


def _as_list(outcomes: Any, piece: TaskRange, device: str) -> Sequence[Any]:
    """Return the outcomes as a list; raises DeviceError for text, a dict, a set or a wrong number."""
    if not isinstance(outcomes, Iterable) or isinstance(outcomes, (str, bytes, Mapping, Set)):
        got = f"returned {type(outcomes).__name__}"
    else:
        listed = outcomes if isinstance(outcomes, list) else list(outcomes)
        if len(listed) == len(piece.tasks):
            return listed
        got = f"returned {len(listed)} outputs"
    raise DeviceError(
        f"[{device}] execute_batch got {len(piece.tasks)} tasks and {got}: it must return one output for"
        f" each, in their order, such as a list"
    )


def _finish_outcomes(
    queue: TaskQueue, piece: TaskRange, outcomes: Sequence[Any], device: str, seconds: float
) -> list[Failed]:
    """Finish the tasks that have an output; return each of the others with what was raised on it."""
    count = sum(not isinstance(each, TaskError) for each in outcomes)
    queue.telemetry.ran(device, count, seconds, whole=count == len(outcomes))
    raised: list[Failed] = []
    begin = 0
    for position, outcome in enumerate(outcomes):
        if isinstance(outcome, TaskError):
            _finish(queue, piece.start + begin, outcomes[begin:position], device)
            begin = position + 1
            raised.append((piece.part(position, begin), outcome.error))
    _finish(queue, piece.start + begin, outcomes[begin:], device)
    return raised


def _finish(queue: TaskQueue, start: int, outputs: Sequence[Any], device: str) -> None:
    if outputs:
        queue.finish(start, outputs, device)


def _merge_neighbours(failed: list[Failed]) -> list[Failed]:
    """Return the pieces with adjacent ones merged, each with its first part's error."""
    joined: list[Failed] = []
    for piece, error in sorted(failed, key=lambda each: each[0].start):
        if joined and joined[-1][0].stop == piece.start:
            before, first = joined[-1]
            joined[-1] = (TaskRange(before.start, [*before.tasks, *piece.tasks]), first)
        else:
            joined.append((piece, error))
    return joined
