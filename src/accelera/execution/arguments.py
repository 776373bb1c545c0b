"""Arguments of batches and streams: profiles and options, and checks of what a caller passes."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE
from numbers import Integral, Real
from types import CodeType
from typing import Any, Literal, TypeVar, final

from accelera.errors import ArgumentError

OnError = Literal["raise", "collect", "skip"]
"""A task that fails ends the work; leaves its ``TaskFailure`` in its place; or is left out of the outputs."""
Fallback = Literal["unfinished", "all", "never"]
"""What the CPU does when a GPU fails: what is left, everything again (seed 002), or nothing."""
Rerun = Literal["on_failure", "freely", "never"]
"""When a task may run twice: after its attempt failed; whenever it is late elsewhere; at no time."""


@final
@dataclass(frozen=True, slots=True)
class WorkloadProfile:
    """A batch of independent tasks.

    Raises
    ------
    ValueError
        When a count is negative or a share is outside 0 … 1.
    TypeError
        When a count is no whole number, or a share no number.
    """

    task_count: int
    """Number of tasks."""
    memory_per_task: int = 0
    """Bytes that one task takes on the device; 0: not known."""
    complexity: float = 0.5
    """Arithmetic of a task, from 0 (trivial) to 1 (heavy)."""
    parallelization: float = 0.8
    """Share of the work that can run side by side, from 0 to 1."""

    def __post_init__(self) -> None:
        for name in ("task_count", "memory_per_task"):
            object.__setattr__(self, name, _whole(name, getattr(self, name)))
        if not (isinstance(self.complexity, Real) and isinstance(self.parallelization, Real)):
            raise ArgumentError(
                f"[WorkloadProfile] complexity={self.complexity!r}, parallelization={self.parallelization!r}:"
                f" both are numbers from 0.0 to 1.0"
            )
        if self.task_count < 0 or self.memory_per_task < 0:
            raise ArgumentError(
                f"[WorkloadProfile] task_count={self.task_count}, memory_per_task={self.memory_per_task}:"
                f" neither can be negative"
            )
        if not (0 <= self.complexity <= 1 and 0 <= self.parallelization <= 1):
            raise ArgumentError(
                f"[WorkloadProfile] complexity={self.complexity}, parallelization={self.parallelization}:"
                f" both are shares from 0.0 to 1.0"
            )


def _whole(name: str, count: object) -> int:
    if isinstance(count, Integral):
        return int(count)
    remedy = (
        "parse_bytes('3MiB') of accelera.units reads sizes from text" if isinstance(count, str) else "int"
    )
    raise ArgumentError(f"[WorkloadProfile] {name}={count!r}: give a whole number; {remedy}")


Task = TypeVar("Task")


def check_profile(op: str, profile: object) -> None:
    """Raise TypeError where a profile is none."""
    if profile is not None and not isinstance(profile, WorkloadProfile):
        raise ArgumentError(
            f"[{op}] profile={described(profile)}: give a WorkloadProfile, such as"
            " WorkloadProfile(task_count=100, memory_per_task=3 << 20)"
        )


def check_function(op: str, function: Any) -> None:
    """Raise TypeError where what is to be run on every task cannot be called, or only be awaited."""
    if not callable(function):
        raise ArgumentError(
            f"[{op}] {described(function)} cannot be called: give a function of one task, such as abs"
        )
    if _is_async(function):
        raise ArgumentError(
            f"[{op}] {described(function)} is async: nobody would await its coroutines; give a function"
            " that is not, such as one that calls asyncio.run"
        )


def _is_async(function: Any) -> bool:
    """Return whether the code that a call of ``function`` runs is that of an async function or generator."""
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(function, "__code__", None)
    if code is None and not isinstance(function, type):
        code = getattr(type(function).__call__, "__code__", None)
    return isinstance(code, CodeType) and bool(code.co_flags & (CO_COROUTINE | CO_ASYNC_GENERATOR))


def listed(tasks: Iterable[Task]) -> list[Task]:
    """Return ``tasks`` as a list; raises TypeError where there are none to go through."""
    try:
        return list(tasks)
    except TypeError:
        if isinstance(tasks, Iterable) or hasattr(tasks, "__getitem__"):
            raise
        raise ArgumentError(
            f"[execute] tasks={described(tasks)}: give a list, a range or anything else to go through"
        ) from None


def check_workers(op: str, workers: Any) -> None:
    """Raise ``ArgumentError`` unless ``workers`` is None or an integer of at least 1."""
    if workers is None:
        return
    if not hasattr(workers, "__index__") or isinstance(workers, bool):
        raise ArgumentError(
            f"[{op}] workers={described(workers)}: give a whole number from 1, or None for all cores"
        )
    if workers < 1:
        raise ArgumentError(f"[{op}] workers={workers}: give at least 1, or None for all cores")


def described(given: object) -> str:
    """Return what was given, short, with its kind."""
    text = repr(given)
    return f"{text} ({type(given).__name__})" if len(text) <= 60 else type(given).__name__
