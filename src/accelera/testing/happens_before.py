"""Happens-before checker for work on streams: vector clocks, and the accesses of memory that they must order.

Work on one stream runs in the order in which it was handed over. Between streams there is an order only where
one waits for an event of the other, or where the host has waited before it handed work over. Two accesses of
the same bytes, one of them a write, that no such order connects are a data race, whatever a run happens to
do.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, final

Clock = Mapping[Hashable, int]
"""Vector clock: for each stream, how many of its pieces of work are known to be done."""

HOST: Hashable = "host"
"""The stream of what the host does itself; all its threads are one, in the order of their calls."""


class Span(NamedTuple):
    """Bytes from ``start`` to ``stop`` of one piece of memory."""

    memory: Hashable
    start: int
    stop: int

    def overlaps(self, other: Span) -> bool:
        """Return whether both have a byte in common."""
        return self.memory == other.memory and self.start < other.stop and other.start < self.stop

    def covers(self, other: Span) -> bool:
        """Return whether all bytes of ``other`` are here."""
        return self.memory == other.memory and self.start <= other.start and other.stop <= self.stop


class DataRaceError(AssertionError):
    """Accesses of the same bytes that nothing orders."""


@dataclass(frozen=True)
class _MemoryAccess:
    span: Span
    stream: Hashable
    number: int
    writes: bool
    what: str

    def race_with(self, earlier: _MemoryAccess) -> str:
        """Return in words that nothing orders this access after an earlier one."""
        does, did = ("writes" if each.writes else "reads" for each in (self, earlier))
        return (
            f"{self.what} on stream {self.stream} {does} bytes {self.span.start} to {self.span.stop} of "
            f"{self.span.memory}; nothing orders it after {earlier.what} on stream {earlier.stream}, which "
            f"{did} {earlier.span.start} to {earlier.span.stop}"
        )


@final
class HappensBefore:
    """Vector clocks of streams and of the host. May be used by several threads.

    Streams and pieces of memory are named by anything hashable.

    >>> order = HappensBefore()
    >>> order.launch("up", "copy", writes=[Span("a", 0, 8)])
    >>> order.launch("compute", "product", reads=[Span("a", 0, 8)])
    >>> order.races  # doctest: +NORMALIZE_WHITESPACE
    ['product on stream compute reads bytes 0 to 8 of a; nothing orders it after copy on stream up,
    which writes 0 to 8']
    >>> order.wait("compute", order.record("up"))
    >>> order.launch("compute", "product", reads=[Span("a", 0, 8)])
    >>> len(order.races)
    1
    """

    def __init__(self) -> None:
        self.races: list[str] = []
        """The data races that were found, each in a sentence."""
        self._clocks: dict[Hashable, dict[Hashable, int]] = {HOST: {}}
        self._accesses: dict[Hashable, list[_MemoryAccess]] = {}
        self._lock = threading.Lock()

    def launch(
        self, stream: Hashable, what: str, reads: Iterable[Span] = (), writes: Iterable[Span] = ()
    ) -> None:
        """Note that the host hands over work that reads and writes these bytes; on ``HOST`` it does it."""
        with self._lock:
            clock = self._clocks.setdefault(stream, {})
            _join(clock, self._clocks[HOST])
            clock[stream] = number = clock.get(stream, 0) + 1
            for spans, does in ((reads, False), (writes, True)):
                for span in spans:
                    self._add_access(_MemoryAccess(span, stream, number, does, what), clock)

    def record(self, stream: Hashable) -> Clock:
        """Return the clock of an event that is recorded on ``stream`` now."""
        with self._lock:
            clock = dict(self._clocks.setdefault(stream, {}))
            _join(clock, self._clocks[HOST])
            return clock

    def wait(self, stream: Hashable, until: Clock) -> None:
        """Note that ``stream`` goes on only when ``until`` is reached; ``HOST``: that the host has waited."""
        with self._lock:
            _join(self._clocks.setdefault(stream, {}), until)

    def follows(self, stream: Hashable, until: Clock) -> bool:
        """Return whether what ``stream`` is given next begins after ``until``."""
        with self._lock:
            clock = dict(self._clocks.get(stream, {}))
            _join(clock, self._clocks[HOST])
            return all(clock.get(each, 0) >= number for each, number in until.items())

    def is_known_done(self, until: Clock) -> bool:
        """Return whether the host has waited for ``until``, or for something later."""
        with self._lock:
            host = self._clocks[HOST]
            return all(host.get(stream, 0) >= number for stream, number in until.items() if stream != HOST)

    def forget(self, memory: Hashable) -> None:
        """Note that a piece of memory is no more; its name may be used again."""
        with self._lock:
            self._accesses.pop(memory, None)

    def check(self) -> None:
        """Raise DataRaceError when there was a race."""
        if self.races:
            count = len(self.races)
            raise DataRaceError(
                f"[streams] {count} pairs of accesses that nothing orders. The first: {self.races[0]}; "
                f"let one stream wait for an event of the other, or the host for either"
            )

    def _add_access(self, access: _MemoryAccess, clock: Clock) -> None:
        earlier = self._accesses.setdefault(access.span.memory, [])
        remaining = []
        for each in earlier:
            if not access.span.overlaps(each.span):
                remaining.append(each)
                continue
            ordered = clock.get(each.stream, 0) >= each.number
            if not ordered and (each.writes or access.writes):
                self.races.append(access.race_with(each))
            if not (ordered and access.span.covers(each.span) and (access.writes or not each.writes)):
                remaining.append(each)
        remaining.append(access)
        self._accesses[access.span.memory] = remaining


def _join(clock: dict[Hashable, int], other: Clock) -> None:
    for stream, number in other.items():
        clock[stream] = max(clock.get(stream, 0), number)
