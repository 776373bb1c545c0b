"""Adapters of a manager: an ``Executor`` of ``concurrent.futures``, ``map``, ``starmap``, coroutines."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from itertools import chain, islice
from typing import Any, Protocol, TypeVar, final

from accelera.errors import ArgumentError, StateError
from accelera.execution.arguments import check_function, described
from accelera.execution.tasks.run import ThreadContext

Returned = TypeVar("Returned")


def without_stop_iteration(call: Callable[[], Returned]) -> Returned:
    """Return what ``call`` does; StopIteration, which nobody could wait for, becomes a RuntimeError."""
    try:
        return call()
    except StopIteration as error:
        raise StateError(
            "[aexecute] a task raised StopIteration, which a coroutine cannot raise: raise another exception"
        ) from error


@final
class LinkedEvent(threading.Event):
    """Counts as set when it is set itself, or the one of the caller, which stays the caller's.

    Raises
    ------
    TypeError
        When the caller's is none.
    """

    def __init__(self, callers: threading.Event | None) -> None:
        super().__init__()
        if callers is not None and not callable(getattr(callers, "is_set", None)):
            raise ArgumentError(
                f"[aexecute] cancel={described(callers)}: give a threading.Event, and set it later"
            )
        self._callers = callers

    def is_set(self) -> bool:
        """Return whether one of them is set."""
        return super().is_set() or (self._callers is not None and self._callers.is_set())


Output = TypeVar("Output")


class Streaming(Protocol):
    """Interface that ``StrategyExecutor`` needs of a ``StrategyManager``."""

    def execute(self, tasks: Any, fn: Any) -> Any:
        """Run ``fn`` on every task."""

    def stream(
        self, tasks: Any, fn: Any, *, ordered: bool, window: int | str | None, timeout: float | None
    ) -> Any:
        """Yield index and output of every task."""


async def run_in_thread(execute: Callable[..., Returned], options: dict[str, Any]) -> Returned:
    """Return what ``execute(**options)`` does in a thread; when cancelled, no further task is begun."""
    import asyncio

    cancel = options["cancel"] = LinkedEvent(options.get("cancel"))
    call = functools.partial(without_stop_iteration, functools.partial(execute, **options))
    try:
        return await asyncio.to_thread(functools.partial(ThreadContext().run, call))
    except asyncio.CancelledError:
        cancel.set()
        raise


@final
class ArgumentUnpacker:
    """A function of one task, which holds the arguments of the user's; measured under that one's name."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.__func__ = function

    def __call__(self, task: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
        """Return what the call returns."""
        return self.__func__(*task[0], **task[1])


@final
class StrategyExecutor(Executor):
    """Runs what is submitted as batches of one, and what is mapped as batches of a chunk.

    Parameters
    ----------
    manager
        Carries everything out.
    workers
        How many of these batches run at once.

    Raises
    ------
    ValueError
        When ``workers`` is below 1.
    """

    def __init__(self, manager: Streaming, workers: int) -> None:
        self._manager = manager
        self._pool = ThreadPoolExecutor(workers, "accelera-submit")
        self._closed = False

    def submit(self, fn: Callable[..., Output], /, *args: Any, **kwargs: Any) -> Future[Output]:
        """Run ``fn(*args, **kwargs)`` and return its future."""
        if len(args) == 1 and not kwargs:
            return self._pool.submit(self._output, fn, args[0])
        return self._pool.submit(self._output, ArgumentUnpacker(fn), (args, kwargs))

    def map(
        self,
        fn: Callable[..., Output],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[Output]:
        """Return the outputs of ``fn`` in the order of its arguments; made whether or not they are read.

        Parameters
        ----------
        fn
            Called with one of each iterable, until the shortest ends.
        iterables
            Read whole at once; with ``buffersize`` as outputs are asked for.
        timeout
            Seconds from now in which an output must be there.
        chunksize
            So many calls are one batch, which ends with the first that fails.
        buffersize
            Makes it a stream with so many calls in memory, sized by time, whatever ``chunksize`` says.

        Raises
        ------
        RuntimeError
            After the shutdown.
        ValueError
            When ``chunksize`` or ``buffersize`` is below 1.
        """
        function, tasks = one_task_each(fn, iterables)
        if buffersize is not None:
            return self._streamed(function, tasks, timeout, buffersize)
        if chunksize < 1:
            raise ArgumentError(f"[map] chunksize={chunksize}: give at least 1")
        chunks = iter(lambda: tuple(islice(tasks, chunksize)), ())
        return chain.from_iterable(
            self._pool.map(functools.partial(self._outputs, function), chunks, timeout=timeout)
        )

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; wait for those that were taken, or cancel the ones not begun."""
        self._closed = True
        self._pool.shutdown(wait, cancel_futures=cancel_futures)

    def _streamed(self, function: Any, tasks: Any, timeout: float | None, window: int) -> Iterator[Any]:
        if self._closed:
            raise StateError("[map] cannot schedule new futures after shutdown")
        stream = self._manager.stream(tasks, function, ordered=True, window=window, timeout=timeout)
        return (output for _, output in stream)

    def _output(self, function: Any, task: Any) -> Any:
        return self._manager.execute([task], function).outputs[0]

    def _outputs(self, function: Any, tasks: Any) -> Any:
        return self._manager.execute(tasks, function).outputs


def one_task_each(fn: Any, iterables: tuple[Iterable[Any], ...]) -> tuple[Any, Iterator[Any]]:
    """Return a function of one task, and the tasks: the user's own where it takes one argument."""
    if len(iterables) == 1:
        return fn, iter(iterables[0])
    arguments = zip(*iterables)  # noqa: B905 - the shortest ends it, as in the standard library
    return ArgumentUnpacker(fn), ((each, {}) for each in arguments)


Streamed = Callable[[Iterable[Any], Callable[[Any], Any]], Iterable[tuple[int, Any]]]
"""``StrategyManager.stream`` with its options."""


def mapped(
    stream: Streamed, fn: Callable[..., Any], iterables: tuple[Iterable[Any], ...], chunksize: int
) -> Iterator[Any]:
    """Return the outputs of ``fn`` for one argument of each iterable, until the shortest ends.

    Raises
    ------
    TypeError
        When ``fn`` cannot be called, there is no iterable, or one is none.
    ValueError
        When ``chunksize`` is below 1.
    """
    check_function("map", fn)
    _check_chunksize("map", chunksize)
    if not iterables:
        raise ArgumentError(
            "[map] no tasks: give at least one iterable after the function, such as range(10)"
        )
    for each in iterables:
        _check_iterable("map", each)
    function, tasks = one_task_each(fn, iterables)
    return (output for _, output in stream(tasks, function))


def starmapped(
    stream: Streamed, fn: Callable[..., Any], tasks: Iterable[Iterable[Any]], chunksize: int
) -> Iterator[Any]:
    """Return the outputs of ``fn(*task)`` for every task; raises as ``mapped`` does."""
    check_function("starmap", fn)
    _check_chunksize("starmap", chunksize)
    _check_iterable("starmap", tasks)
    return (output for _, output in stream(((each, {}) for each in tasks), ArgumentUnpacker(fn)))


def _check_chunksize(op: str, chunksize: Any) -> None:
    if not hasattr(chunksize, "__index__") or isinstance(chunksize, bool):
        raise ArgumentError(f"[{op}] chunksize={described(chunksize)}: give a whole number from 1")
    if chunksize < 1:
        raise ArgumentError(f"[{op}] chunksize={chunksize}: give at least 1")


def _check_iterable(op: str, tasks: Any) -> None:
    if not (isinstance(tasks, Iterable) or hasattr(tasks, "__getitem__")):
        raise ArgumentError(f"[{op}] {described(tasks)}: give a list, a range or anything else to go through")
