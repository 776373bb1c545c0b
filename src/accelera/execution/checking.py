"""What a caller passes, checked by kind: a TypeError names what was given and what to give instead."""

from __future__ import annotations

from collections.abc import Iterable
from inspect import CO_COROUTINE
from typing import Any, Final, TypeVar

from accelera.execution.watching.observer import Observer
from accelera.units import parse_bytes

Task = TypeVar("Task")

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
        raise TypeError(
            f"[StrategyManager] {side}={name}: a class, not an executor; make one, such as {name}()"
        )
    missing = [name for name in methods if not callable(getattr(executor, name, None))]
    if missing:
        raise TypeError(
            f"[StrategyManager] {side}={described(executor)} has no {'(), '.join(missing)}(): give the CPU's"
            " executor first, then the GPU's; strategy= says where work runs"
        )


def checked_observers(observers: Any) -> tuple[Observer, ...]:
    """Return ``observers`` as a tuple; raise TypeError where one is none."""
    given = tuple(observers) if isinstance(observers, Iterable) else (observers,)
    wrong = [each for each in given if not isinstance(each, Observer)]
    if wrong or not isinstance(observers, Iterable):
        raise TypeError(
            f"[StrategyManager] observers={described(observers)}"
            + (f" with {described(wrong[0])}" if wrong and isinstance(observers, Iterable) else "")
            + ": give a list of observers, such as [PrometheusObserver()]; each derives from Observer"
        )
    return given


def check_profile(op: str, profile: object) -> None:
    """Raise TypeError where a profile is none."""
    from accelera.execution.profile import WorkloadProfile

    if profile is not None and not isinstance(profile, WorkloadProfile):
        raise TypeError(
            f"[{op}] profile={described(profile)}: give a WorkloadProfile, such as"
            " WorkloadProfile(task_count=100, memory_per_task=3 << 20)"
        )


def check_function(op: str, function: Any) -> None:
    """Raise TypeError where what is to be run on every task cannot be called, or only be awaited."""
    if not callable(function):
        raise TypeError(
            f"[{op}] {described(function)} cannot be called: give a function of one task, such as abs"
        )
    code = getattr(function, "__code__", None)
    if code is not None and code.co_flags & CO_COROUTINE:
        raise TypeError(
            f"[{op}] {described(function)} is async: nobody would await its coroutines; give a function"
            " that is not, such as one that calls asyncio.run"
        )


def listed(tasks: Iterable[Task]) -> list[Task]:
    """Return ``tasks`` as a list; raises TypeError where there are none to go through."""
    try:
        return list(tasks)
    except TypeError:
        if isinstance(tasks, Iterable) or hasattr(tasks, "__getitem__"):
            raise
        raise TypeError(
            f"[execute] tasks={described(tasks)}: give a list, a range or anything else to go through"
        ) from None


def asked_workers(op: str, workers: Any, max_workers: Any) -> Any:
    """Return the number of workers, which has two names; raise TypeError where both are given."""
    if workers is not None and max_workers is not None:
        raise TypeError(
            f"[{op}] workers={described(workers)} and max_workers={described(max_workers)}: two names of one"
            " number; give one of them"
        )
    check_workers(op, workers)
    check_workers(op, max_workers, "max_workers")
    return workers if max_workers is None else max_workers


def check_workers(op: str, workers: Any, name: str = "workers") -> None:
    """Raise TypeError where a number of workers is none, ValueError where it is below 1."""
    if workers is None:
        return
    if not hasattr(workers, "__index__") or isinstance(workers, bool):
        raise TypeError(
            f"[{op}] {name}={described(workers)}: give a whole number from 1, or None for all cores"
        )
    if workers < 1:
        raise ValueError(f"[{op}] {name}={workers}: give at least 1, or None for all cores")


def given_bytes(budget: int | float | str) -> int:
    """Return a budget in bytes; raises ValueError when it is no size, or 0."""
    nbytes = parse_bytes(budget)
    if not nbytes:
        raise ValueError(
            f"[StrategyManager] budget={budget!r} leaves no memory for any task: give bytes above 0, or text"
            " such as '8GiB'; None sets no limit"
        )
    return nbytes


def described(given: object) -> str:
    """Return what was given, short, with its kind."""
    text = repr(given)
    return f"{text} ({type(given).__name__})" if len(text) <= 60 else type(given).__name__
