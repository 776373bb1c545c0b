"""Calls that a captured function leaves to Python: steps of optimizers and learning-rate schedulers."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar

from accelera.errors import StateError

P = ParamSpec("P")
R = TypeVar("R")


class FunctionCapture(Protocol):
    """Interface of a running capture; `accelera.tensora.captured_program.FunctionTrace` implements it."""

    def host_call(self, call: Callable[[], Any], name: str) -> Any:
        """Run the call now, and again at this point of each replay."""

    def draw(self, generator: Any, seed: int, number: int) -> None:
        """Record a draw of random numbers from a generator."""

    def note_unguarded(self, name: str) -> None:
        """Note that the function does something that a replay cannot repeat."""


class Rehearsal:
    """Call of a function as it is written, in which only what a capture could not repeat is noted."""

    def __init__(self) -> None:
        self.unguarded: list[str] = []

    def run(self, function: Callable[[], R]) -> R:
        """Run the function."""
        current.trace = self
        try:
            return function()
        finally:
            current.trace = None

    def host_call(self, call: Callable[[], Any], name: str) -> Any:
        """Run the call, unobserved."""
        return unobserved(call)

    def draw(self, generator: Any, seed: int, number: int) -> None:
        """Leave out draws of random numbers, which a replay can repeat."""

    def note_unguarded(self, name: str) -> None:
        """Note that the function does something that a replay cannot repeat."""
        self.unguarded.append(name)


def unobserved(call: Callable[[], R]) -> R:
    """Run a call without the profile function: each replay runs it too, so that its state needs no guards."""
    observer = sys.getprofile()
    is_function = callable(observer)  # or else the profiler of cProfile
    if is_function:
        sys.setprofile(None)
    before, current.trace = current.trace, None
    try:
        return call()
    finally:
        current.trace = before
        if is_function:
            sys.setprofile(observer)


class _Current(threading.local):
    trace: FunctionCapture | None = None


current = _Current()
"""The capture of this thread."""


def host_call(method: Callable[P, R]) -> Callable[P, R]:
    """Decorate a method that Python runs anew in each replay of a captured function."""

    @functools.wraps(method)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        trace = current.trace
        if trace is None:
            return method(*args, **kwargs)
        if len(args) > 1 or kwargs:
            raise StateError(
                f"[jit] {method.__qualname__} with arguments cannot be captured; call it outside of the "
                "function"
            )
        result: R = trace.host_call(lambda: method(*args, **kwargs), method.__qualname__)
        return result

    return wrapped


def uncaptured(method: Callable[P, R]) -> Callable[P, R]:
    """Decorate a method that a captured function must not call."""

    @functools.wraps(method)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        if current.trace is not None:
            raise StateError(
                f"[jit] {method.__qualname__} cannot be captured; call it outside of the function"
            )
        return method(*args, **kwargs)

    return wrapped
