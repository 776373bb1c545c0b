"""How many tasks fit a device at once: found by bisection between what worked and what did not."""

from __future__ import annotations

import threading
from typing import NamedTuple, final

GROWTH, SUCCESSES_BEFORE_GROWTH = 1.25, 16
CLOSE_ENOUGH = 0.1
"""Bisection ends when what worked and what did not are this close, relative to what worked."""
SUCCESSES_BEFORE_DOUBT = 256
"""After so many good pieces what did not work may work by now; twice as many whenever it does not."""


class Known(NamedTuple):
    """What is known of how many tasks fit at once."""

    good: int
    """Most that went well; 0: none."""
    bad: int | None
    """Fewest that did not."""
    limit: int | None
    """Most to give; None: any number."""


@final
class MicroBatch:
    """The largest number of tasks that a device is given at once. May be shared by threads.

    After a failure half as many are tried, then the middle between the most that worked and the fewest that
    did not; when these are close, the limit stays. Where nothing ever failed it grows by a quarter after
    sixteen good pieces, and so it does where the last failure is long ago.

    Parameters
    ----------
    limit
        What the memory should allow; None: not known.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.known_good = 0
        self.known_bad: int | None = None
        self._limit = None if limit is None else max(1, limit)
        self._successes = 0
        self._patience = SUCCESSES_BEFORE_DOUBT
        self._doubted: int | None = None
        self._lock = threading.Lock()

    @property
    def limit(self) -> int | None:
        """Most tasks to give at once; None while nothing is known against any number."""
        return self._limit

    def succeeded(self, count: int) -> None:
        """``count`` tasks at once went well."""
        with self._lock:
            self.known_good = max(self.known_good, count)
            if self.known_bad is not None and count >= self.known_bad:
                self.known_bad = None
            if self._doubted is not None and count >= self._doubted:
                self._doubted = None
            if self._limit is None or count < self._limit:
                return
            self._successes += 1
            if self.known_bad is None:
                if self._successes >= SUCCESSES_BEFORE_GROWTH:
                    self._grow()
            elif self._apart():
                self._set(self._middle())
            elif self._successes >= self._patience:
                self._patience *= 2
                self.known_bad, self._doubted = None, self.known_bad
                self._grow()

    def ran_out(self, count: int) -> None:
        """``count`` tasks at once took more memory than there is."""
        with self._lock:
            bad = (count, self.known_bad or count, self._doubted or count)
            self.known_bad, self._doubted = min(bad), None
            if self.known_good >= self.known_bad:
                self.known_good = 0
            self._set(self._middle() if self._apart() and self.known_good else self.known_good or count // 2)

    def known(self) -> Known:
        """Return what is known now, to be restored."""
        with self._lock:
            return Known(self.known_good, self.known_bad, self._limit)

    def restore(self, before: Known, good: int) -> None:
        """Return to what was known ``before``, and that ``good`` tasks at once have gone well since."""
        with self._lock:
            self.known_good, self.known_bad = max(before.good, good), before.bad
            if self.known_bad is not None and self.known_bad <= self.known_good:
                self.known_bad = None
            self._doubted, self._limit = None, None
            if before.limit is not None:
                self._set(max(before.limit, self.known_good))

    def _apart(self) -> bool:
        if self.known_bad is None:
            return False
        return self.known_bad - self.known_good > max(1, int(CLOSE_ENOUGH * self.known_good))

    def _middle(self) -> int:
        assert self.known_bad is not None, "asked only when something failed"
        return (self.known_good + self.known_bad) // 2

    def _grow(self) -> None:
        assert self._limit is not None, "grows only from a limit"
        self._set(max(int(self._limit * GROWTH), self._limit + 1))

    def _set(self, limit: int) -> None:
        if self.known_bad is not None:
            limit = min(limit, self.known_bad - 1)
        self._limit, self._successes = max(1, limit), 0
