"""``map`` and ``starmap`` of a manager: outputs in the order of the arguments, made as they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from accelera.execution.checking import check_function, described
from accelera.execution.streaming.futures import Spread, one_task_each

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
        raise TypeError("[map] no tasks: give at least one iterable after the function, such as range(10)")
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
    return (output for _, output in stream(((each, {}) for each in tasks), Spread(fn)))


def _check_chunksize(op: str, chunksize: Any) -> None:
    if not hasattr(chunksize, "__index__") or isinstance(chunksize, bool):
        raise TypeError(f"[{op}] chunksize={described(chunksize)}: give a whole number from 1")
    if chunksize < 1:
        raise ValueError(f"[{op}] chunksize={chunksize}: give at least 1")


def _check_iterable(op: str, tasks: Any) -> None:
    if not (isinstance(tasks, Iterable) or hasattr(tasks, "__getitem__")):
        raise TypeError(f"[{op}] {described(tasks)}: give a list, a range or anything else to go through")
