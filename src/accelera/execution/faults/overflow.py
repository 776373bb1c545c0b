"""Pieces, one within the other, that ran out of memory: maybe for one task that is in all of them."""

from __future__ import annotations

from typing import final

from accelera.execution.faults.micro_batch import MicroBatch


@final
class Overflow:
    """Remembers what was known of how many tasks fit, until it is clear which were too many.

    Parameters
    ----------
    start, stop
        The tasks that ran out of memory first.
    size
        What is known, before that has been learned.
    """

    def __init__(self, start: int, stop: int, size: MicroBatch) -> None:
        self._start, self._stop = start, stop
        self._size = size
        self._before = size.known()
        self._most = 0
        self._alone = False

    def goes_on(self, start: int, stop: int, size: MicroBatch) -> bool:
        """Return whether these tasks, which ran out of memory too, are among all those that did before."""
        if self._alone or size is not self._size:
            return False
        if not (self._start <= start and stop <= self._stop):
            return False
        self._start, self._stop = start, stop
        return True

    def fitted(self, count: int) -> Overflow | None:
        """So many tasks at once went well meanwhile; None when there is nothing left to be found out."""
        self._most = max(self._most, count)
        return self._concluded()

    def alone(self, index: int, size: MicroBatch) -> Overflow | None:
        """One task is too much by itself; None when there is nothing left to be found out."""
        if not self._alone and not self.goes_on(index, index + 1, size):
            return None
        self._alone = True
        return self._concluded()

    def _concluded(self) -> Overflow | None:
        """Where a task alone was too much and others went well, it was that one, and not their number."""
        if not (self._alone and max(self._most, self._before.good)):
            return self
        self._size.restore(self._before, self._most)
        return None
