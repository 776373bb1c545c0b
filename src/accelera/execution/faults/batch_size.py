"""Batch size of a device: bisected between what fitted and what did not, or predicted from peaks."""

from __future__ import annotations

import threading
from typing import Final, NamedTuple, final

MARGIN: Final = 0.1
"""This part of the free memory is left alone: allocators round up, and memory lies in pieces."""
ENOUGH: Final = 8
"""So many sizes of micro-batches are kept, the largest of them."""


@final
class MemoryModel:
    """The straight line m0 + m1 · n over the peaks that micro-batches of n tasks had.

    May be shared by threads. It passes through or above every peak; while all were of one size, m0 is 0.
    """

    def __init__(self) -> None:
        self._peaks: dict[int, int] = {}
        self._lock = threading.Lock()

    def wants(self, count: int) -> bool:
        """Return whether a measurement of ``count`` tasks would tell anything new."""
        with self._lock:
            return count not in self._peaks and (
                len(self._peaks) < ENOUGH or count > min(self._peaks, default=0)
            )

    def measured(self, count: int, peak_bytes: int) -> None:
        """Add a measurement: ``count`` tasks at once took ``peak_bytes`` on top of what was there before."""
        with self._lock:
            self._peaks[count] = max(peak_bytes, self._peaks.get(count, 0))
            if len(self._peaks) > ENOUGH:
                del self._peaks[min(self._peaks)]

    def line(self) -> tuple[float, float] | None:
        """Return m0 in bytes and m1 in bytes per task; None while nothing is known."""
        with self._lock:
            points = list(self._peaks.items())
        if not points or not any(peak for _, peak in points):
            return None
        slope = _slope(points) if len(points) > 1 else 0.0
        if slope <= 0:
            return 0.0, max(peak / count for count, peak in points)
        return max(0.0, *(peak - slope * count for count, peak in points)), slope

    def fitting(self, free_bytes: int) -> int | None:
        """Return the most tasks that should fit ``free_bytes``, at least 1; None while nothing is known."""
        line = self.line()
        if line is None:
            return None
        return max(1, int(((1 - MARGIN) * free_bytes - line[0]) / line[1]))


def _slope(points: list[tuple[int, int]]) -> float:
    """Return the slope of the line with the least squared distance from the points."""
    middle = sum(count for count, _ in points) / len(points)
    height = sum(peak for _, peak in points) / len(points)
    rise = sum((count - middle) * (peak - height) for count, peak in points)
    return rise / sum((count - middle) ** 2 for count, _ in points)


GROWTH, SUCCESSES_BEFORE_GROWTH = 1.25, 16
CLOSE_ENOUGH = 0.1
"""Bisection ends when what worked and what did not are this close, relative to what worked."""
SUCCESSES_BEFORE_DOUBT = 256
"""After so many good pieces what did not work may work by now; twice as many whenever it does not."""


class SizerState(NamedTuple):
    """Known bounds of how many tasks fit at once."""

    good: int
    """Most that went well; 0: none."""
    bad: int | None
    """Fewest that did not."""
    limit: int | None
    """Most to give; None: any number."""


@final
class BatchSizer:
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
        """Note that ``count`` tasks at once went well."""
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
            elif self._can_bisect():
                self._set(self._middle())
            elif self._successes >= self._patience:
                self._patience *= 2
                self.known_bad, self._doubted = None, self.known_bad
                self._grow()

    def ran_out(self, count: int) -> None:
        """Note that ``count`` tasks at once took more memory than there is."""
        with self._lock:
            bad = (count, self.known_bad or count, self._doubted or count)
            self.known_bad, self._doubted = min(bad), None
            if self.known_good >= self.known_bad:
                self.known_good = 0
            self._set(
                self._middle() if self._can_bisect() and self.known_good else self.known_good or count // 2
            )

    def known(self) -> SizerState:
        """Return what is known now, to be restored."""
        with self._lock:
            return SizerState(self.known_good, self.known_bad, self._limit)

    def restore(self, before: SizerState, good: int) -> None:
        """Return to what was known ``before``, and that ``good`` tasks at once have gone well since."""
        with self._lock:
            self.known_good, self.known_bad = max(before.good, good), before.bad
            if self.known_bad is not None and self.known_bad <= self.known_good:
                self.known_bad = None
            self._doubted, self._limit = None, None
            if before.limit is not None:
                self._set(max(before.limit, self.known_good))

    def _can_bisect(self) -> bool:
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
