"""When a task that raised is tried again."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from numbers import Real
from typing import Final, final

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
            raise TypeError(f"[Retry] times={self.times!r}, wait_s={self.wait_s!r}: both are numbers from 0")
        if not (self.times >= 0 and self.wait_s >= 0):
            raise ValueError(f"[Retry] times={self.times}, wait_s={self.wait_s}: both are numbers from 0")
        if not all(isinstance(each, type) and issubclass(each, BaseException) for each in _kinds(self.on)):
            raise TypeError(f"[Retry] on={self.on!r}: give a kind of exceptions, or a tuple of several")

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
