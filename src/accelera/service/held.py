"""Traces that were asked about last, held for the next question."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from accelera.trace import Trace
from accelera.views import MeasuredTrace

MOST_TRACES = 64
MOST_ACCESSES = 2_000_000
"""Of all traces held together: about 200 MB."""


class HeldTraces:
    """Traces with their facts by what they were made from, the least recently asked given up first."""

    def __init__(self, most: int = MOST_TRACES, most_accesses: int = MOST_ACCESSES) -> None:
        self._most = most
        self._most_accesses = most_accesses
        self._held: OrderedDict[str, MeasuredTrace] = OrderedDict()
        self._accesses = 0

    def get(self, key: str) -> MeasuredTrace | None:
        """Return what is held for ``key``."""
        found = self._held.get(key)
        if found is not None:
            self._held.move_to_end(key)
        return found

    def put(self, key: str, trace: Trace) -> MeasuredTrace:
        """Hold ``trace`` for ``key``, and return its facts."""
        self.drop(key)
        facts = self._held[key] = MeasuredTrace(trace)
        self._accesses += trace.access_count
        while len(self._held) > 1 and (len(self._held) > self._most or self._accesses > self._most_accesses):
            self.drop(next(iter(self._held)))
        return facts

    def drop(self, key: str) -> None:
        """Give up what is held for ``key``."""
        gone = self._held.pop(key, None)
        if gone is not None:
            self._accesses -= gone.trace.access_count

    def made(self, key: str, make: Callable[[], Trace]) -> MeasuredTrace:
        """Return what is held for ``key``, made first if it is not."""
        return self.get(key) or self.put(key, make())
