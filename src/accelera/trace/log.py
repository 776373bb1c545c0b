"""A trace kept in memory while a run goes on: the recorder that remembers everything it hears."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from accelera.trace.access import Access
from accelera.trace.trace import Trace


class TraceLog:
    """An ordered list of events.

    >>> log = TraceLog()
    >>> log.record(Access(buffer=0, nbytes=64, step=0))
    >>> len(log), log.moved_distinct_bytes(), log.trace()
    (1, 64, Trace(1 accesses of 1 buffers in 1 steps))
    """

    def __init__(self) -> None:
        self._accesses: list[Access] = []

    def record(self, access: Access) -> None:
        """Append ``access``."""
        self._accesses.append(access)

    def __len__(self) -> int:
        return len(self._accesses)

    def __iter__(self) -> Iterator[Access]:
        return iter(self._accesses)

    def __getitem__(self, index: int) -> Access:
        return self._accesses[index]

    def trace(self, **more: Any) -> Trace:
        """Return what was recorded, in columns; ``more`` goes to ``Trace.from_arrays``."""
        return Trace.from_accesses(self._accesses, **more)

    def buffers(self) -> list[int]:
        """Return the buffer ids in order of access, other events left out."""
        return [access.buffer for access in self._accesses if access.counts]

    def moved_distinct_bytes(self) -> int:
        """Return the bytes of all distinct buffers: the least any policy must move."""
        sizes = {access.buffer: access.nbytes for access in self._accesses}
        return sum(sizes.values())
