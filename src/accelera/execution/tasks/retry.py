"""Retries: when a task that raised is tried again, and the loop that carries tasks out with them.

Loaded by worker processes as well, so it needs nothing else.
"""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Final, TypeVar, final

from accelera.errors import ArgumentError

Caught = TypeVar("Caught", bound=BaseException)

MOST_DOUBLINGS: Final = 64
"""A pause that was doubled so often is longer than any machine lasts."""


@final
@dataclass(frozen=True, slots=True)
class Retry:
    """Tries a task again whose function raised one of the named errors.

    Raises
    ------
    ValueError
        When ``times`` or ``wait_s`` is below 0.
    TypeError
        When ``on`` is neither a kind of exception nor a tuple of them, or ``times`` or ``wait_s`` no number.
    """

    times: int = 1
    """How often at most, after the first attempt."""
    on: tuple[type[Exception], ...] = (OSError,)
    """The errors that are worth another attempt."""
    wait_s: float = 0.0
    """Seconds before the next attempt; doubled each time."""

    def __post_init__(self) -> None:
        if not (isinstance(self.times, Real) and isinstance(self.wait_s, Real)):
            raise ArgumentError(
                f"[Retry] times={self.times!r}, wait_s={self.wait_s!r}: both are numbers from 0"
            )
        if not (self.times >= 0 and self.wait_s >= 0):
            raise ArgumentError(f"[Retry] times={self.times}, wait_s={self.wait_s}: both are numbers from 0")
        if not all(isinstance(each, type) and issubclass(each, BaseException) for each in _kinds(self.on)):
            raise ArgumentError(f"[Retry] on={self.on!r}: give a kind of exceptions, or a tuple of several")

    def allows(self, error: BaseException, attempts: int) -> bool:
        """Return whether a task that raised ``error`` after ``attempts`` attempts is tried again."""
        return attempts <= self.times and isinstance(error, self.on)

    def pause_s(self, attempts: int) -> float:
        """Return the seconds to wait after so many attempts; no more than a thread can wait."""
        if not self.wait_s:
            return 0.0
        doubled = min(attempts - 1, MOST_DOUBLINGS)
        return min(self.wait_s * 2.0**doubled, threading.TIMEOUT_MAX)


def _kinds(on: object) -> tuple[object, ...]:
    return on if isinstance(on, tuple) else (on,)


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


class RetryLoop(abc.ABC):
    """Carries ``count`` tasks out in their order; a subclass says how, and what becomes of an error."""

    def __init__(self, count: int) -> None:
        self._count = count

    def run(self, first: tuple[int, BaseException | None] | None = None) -> int:
        """Go on until all tasks have ended or the work was stopped; return how many ended.

        ``first`` is what ``attempt(0)`` would return, where that attempt was made already.
        """
        done, attempts = 0, 1
        while done < self._count and (first is not None or not self.stopped):
            outputs, error = self.attempt(done) if first is None else first
            first = None
            if outputs:
                done, attempts = done + outputs, 1
            if error is None:
                continue
            if self.retry_or_fail(done, error, attempts):
                self.pause(attempts)
                attempts += 1
            else:
                done, attempts = done + 1, 1
        return done

    @property
    @abc.abstractmethod
    def stopped(self) -> bool:
        """Whether no further task should be begun."""

    @abc.abstractmethod
    def attempt(self, start: int) -> tuple[int, BaseException | None]:
        """Run the tasks from ``start`` on; return how many have outputs, and what the next one raised."""

    @abc.abstractmethod
    def retry_or_fail(self, position: int, error: BaseException, attempts: int) -> bool:
        """Return whether the task at ``position`` is tried again after ``attempts`` attempts, or fail it."""

    @abc.abstractmethod
    def pause(self, attempts: int) -> None:
        """Wait before the next attempt."""
