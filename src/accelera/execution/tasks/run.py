"""Execution of a task range: by the calling thread or an executor, with retries, in the caller's context."""

from __future__ import annotations

import contextlib
import contextvars
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, TypeVar, final

from accelera.errors import DeviceError
from accelera.execution.hardware.cpu_share import core_share, thread_share
from accelera.execution.kernel import GpuBatch, Kernel
from accelera.execution.tasks.queue import TaskQueue, TaskRange

Returned = TypeVar("Returned")

_USUAL = 0
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
        torch = sys.modules.get("torch")
        self._modes = [*_modes_of(torch), *_streams_of(torch)]

    def run(self, do: Callable[[], Returned]) -> Returned:
        """Return what ``do`` does, called as the thread would that made this."""
        return self._context.run(self._run, do)

    def _run(self, do: Callable[[], Returned]) -> Returned:
        with contextlib.ExitStack() as modes:
            for make, arguments in self._modes:
                modes.enter_context(make(*arguments))
            return do()


def modes_are_set() -> bool:
    """Return whether this thread has set modes of torch, which a process of its own would not have."""
    return bool(_modes_of(sys.modules.get("torch")))


def _modes_of(torch: Any) -> list[tuple[Any, tuple[Any, ...]]]:
    """Return how to make the modes that are not as they are in a new thread; none while torch is loading."""
    try:
        if torch is None:
            return []
        modes: list[tuple[Any, tuple[Any, ...]]] = [
            (torch.autocast, (kind, torch.get_autocast_dtype(kind)))
            for kind in ("cpu", "cuda")
            if torch.is_autocast_enabled(kind)
        ]
        if torch.is_inference_mode_enabled():
            modes.append((torch.inference_mode, ()))
        elif not torch.is_grad_enabled():
            modes.append((torch.no_grad, ()))
    except AttributeError:
        return []
    return modes


def _streams_of(torch: Any) -> list[tuple[Any, tuple[Any, ...]]]:
    """Return how to make the accelerator and streams current that are not those of a new thread.

    None while no accelerator is in use, which asking would begin.
    """
    try:
        kind = next(kind for kind in ("cuda", "xpu") if getattr(torch, kind).is_initialized())
    except (AttributeError, StopIteration):
        return []
    from accelera.devices.torch_streams import on_stream

    module = getattr(torch, kind)
    devices = [torch.device(kind, index) for index in range(module.device_count())]
    streams = [(torch.accelerator.current_stream(device), device) for device in devices]
    here = streams.pop(module.current_device())
    unusual = [each for each in streams if each[0].stream_id != _USUAL]
    if unusual or here[0].stream_id != _USUAL or here[1].index != 0:
        unusual.append(here)
    return [(on_stream, each) for each in unusual]


def in_context(work: TaskQueue, do: Callable[[], object]) -> Callable[[], None]:
    """Return ``do`` for a thread of its own, which has this thread's context and share of the cores.

    What it raises ends ``work`` and is raised to the caller: others would wait for what the thread had.
    """
    return _InContext(work, do)


@final
class _InContext:
    """No closure: an exception keeps the functions that it came through, and their closures with them."""

    def __init__(self, work: TaskQueue, do: Callable[[], object]) -> None:
        self._work = work
        self._do = do
        self._share = thread_share()
        self._context = ThreadContext()

    def __call__(self) -> None:
        try:
            with core_share(self._share):
                self._context.run(self._do)
        except BaseException as error:
            self._work.break_down(error)


Caught = TypeVar("Caught", bound=BaseException)


def apply(
    function: Callable[[Any], Any], tasks: Sequence[Any], caught: type[Caught]
) -> tuple[list[Any], Caught | None]:
    """Return the outputs of ``tasks`` up to the first that raises what is ``caught``, and what it raised."""
    outputs: list[Any] = []
    keep = outputs.append
    try:
        for task in tasks:
            keep(function(task))
    except caught as error:
        return outputs, error
    return outputs, None


def run_range(work: TaskQueue, piece: TaskRange, device: str, caught: type[BaseException] = Exception) -> int:
    """Run the user's function on every task of ``piece``; return how many came to an end.

    What raises what is ``caught`` is retried or told, and the others go on; what was not begun is given back.
    """
    done, attempts = 0, 1
    began = time.perf_counter()
    while done < len(piece.tasks) and not work.stopped:
        outputs, error = apply(work.function, piece.tasks[done:] if done else piece.tasks, caught)
        if outputs or error is not None:
            seconds, began = time.perf_counter() - began, time.perf_counter()
            work.watch.ran(device, len(outputs), seconds, whole=len(outputs) == len(piece.tasks))
        if outputs:
            work.finish(piece.start + done, outputs)
            done, attempts = done + len(outputs), 1
        if error is None:
            return done
        if work.retry is not None and work.retry.allows(error, attempts):
            work.watch.retried(piece.start + done, error, device)
            if work.retry.wait_s:
                work.rest(work.retry.pause_s(attempts))
            attempts += 1
            continue
        work.fail(piece.start + done, error, device)
        done, attempts = done + 1, 1
    if done < len(piece.tasks):
        work.give_back(piece.part(done, len(piece.tasks)))
    return done


@final
@dataclass(frozen=True, slots=True)
class TaskError:
    """What the user's function raised on one task."""

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
    work: TaskQueue,
    piece: TaskRange,
    device: str,
    is_device_error: Callable[[Exception], bool] = lambda error: False,
) -> list[Failed]:
    """Run ``piece`` through ``execute_batch`` and bring its outcomes; tasks are retried as ``work`` allows.

    Whoever watches ``work`` is told of what ran. Returns the parts that are neither finished nor failed: what
    ``execute_batch`` itself raised on, and where the user's function met an error of the device.
    """
    failed: list[Failed] = []
    waiting, attempts = [piece], 1
    while waiting:
        raised: list[Failed] = []
        for part in waiting:
            began = time.perf_counter()
            try:
                outcomes = _listed(execute_batch(part.tasks, CatchingFunction(work.function)), part, device)
            except Exception as error:
                work.watch.ran(device, 0, time.perf_counter() - began, whole=False)
                failed.append((part, error))
            else:
                raised += _finish_outcomes(work, part, outcomes, device, time.perf_counter() - began)
        failed += [each for each in raised if is_device_error(each[1])]
        waiting = _to_retry(work, [each for each in raised if not is_device_error(each[1])], device, attempts)
        attempts += 1
    return _joined(failed)


def _to_retry(work: TaskQueue, raised: list[Failed], device: str, attempts: int) -> list[TaskRange]:
    """Return, after the wait, the tasks that are to be tried again; the others fail for good."""
    retry, again = work.retry, list[TaskRange]()
    for piece, error in raised:
        if retry is not None and retry.allows(error, attempts):
            work.watch.retried(piece.start, error, device)
            again.append(piece)
        else:
            work.fail(piece.start, error, device)
    if again and retry is not None and retry.wait_s:
        work.rest(retry.pause_s(attempts))
    if not work.stopped:
        return again
    for piece in again:
        work.give_back(piece)
    return []


def _listed(outcomes: Any, piece: TaskRange, device: str) -> Sequence[Any]:
    """Return the outcomes as a list, whatever they came in that has an order: no text, dict or set."""
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
    work: TaskQueue, piece: TaskRange, outcomes: Sequence[Any], device: str, seconds: float
) -> list[Failed]:
    """Finish the tasks that have an output; return each of the others with what was raised on it."""
    count = sum(not isinstance(each, TaskError) for each in outcomes)
    work.watch.ran(device, count, seconds, whole=count == len(outcomes))
    raised: list[Failed] = []
    begin = 0
    for position, outcome in enumerate(outcomes):
        if isinstance(outcome, TaskError):
            _finish(work, piece, outcomes, begin, position)
            begin = position + 1
            raised.append((piece.part(position, begin), outcome.error))
    _finish(work, piece, outcomes, begin, len(outcomes))
    return raised


def _finish(work: TaskQueue, piece: TaskRange, outcomes: Sequence[Any], begin: int, end: int) -> None:
    if begin < end:
        work.finish(piece.start + begin, outcomes[begin:end])


def _joined(failed: list[Failed]) -> list[Failed]:
    """Return neighbours as one piece, with the first one's error."""
    joined: list[Failed] = []
    for piece, error in sorted(failed, key=lambda each: each[0].start):
        if joined and joined[-1][0].stop == piece.start:
            before, first = joined[-1]
            joined[-1] = (TaskRange(before.start, [*before.tasks, *piece.tasks]), first)
        else:
            joined.append((piece, error))
    return joined
