"""A manager as an ``Executor`` of ``concurrent.futures``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from itertools import chain, islice
from typing import Any, Protocol, TypeVar, final

Output = TypeVar("Output")


class Manager(Protocol):
    """What carries calls out: a ``StrategyManager``."""

    def execute(self, tasks: Any, fn: Any) -> Any:
        """Run ``fn`` on every task."""

    def stream(
        self, tasks: Any, fn: Any, *, ordered: bool, window: int | str | None, timeout: float | None
    ) -> Any:
        """Yield index and output of every task."""


@final
class Spread:
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

    def __init__(self, manager: Manager, workers: int) -> None:
        self._manager = manager
        self._pool = ThreadPoolExecutor(workers, "accelera-submit")
        self._closed = False

    def submit(self, fn: Callable[..., Output], /, *args: Any, **kwargs: Any) -> Future[Output]:
        """Run ``fn(*args, **kwargs)`` and return its future."""
        if len(args) == 1 and not kwargs:
            return self._pool.submit(self._output, fn, args[0])
        return self._pool.submit(self._output, Spread(fn), (args, kwargs))

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
            raise ValueError(f"[map] chunksize={chunksize}: give at least 1")
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
            raise RuntimeError("[map] cannot schedule new futures after shutdown")
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
    return Spread(fn), ((each, {}) for each in arguments)
