"""Retry loop: tasks one after the other, each tried again as its ``Retry`` allows.

Loaded by worker processes as well, so it needs nothing else.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

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
            if self.tries_again(done, error, attempts):
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
    def tries_again(self, position: int, error: BaseException, attempts: int) -> bool:
        """Return whether the task at ``position`` is tried again after ``attempts`` attempts, or fail it."""

    @abc.abstractmethod
    def pause(self, attempts: int) -> None:
        """Wait before the next attempt."""
