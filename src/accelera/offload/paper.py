"""The same stream on paper: to know a run's traffic before anything moves."""

from __future__ import annotations

from typing import final

from accelera.memory import PoolStats
from accelera.offload.block import Block
from accelera.offload.books import Books
from accelera.offload.streaming import Stream
from accelera.offload.window import window_of


@final
class PaperStream:
    """A stream whose books have no bytes behind them.

    Give it the blocks and uses that a run will have, in that order, and ``stats`` are the run's.
    """

    def __init__(self, capacity_bytes: int, policy: str = "loop", window_bytes: int | None = None) -> None:
        self._books = Books(capacity_bytes, policy)
        self.stream = Stream(self._books, window_of(capacity_bytes, window_bytes))

    @property
    def stats(self) -> PoolStats:
        """Hits, misses, evictions, bytes fetched and saved, and peak so far."""
        return self._books.stats

    def block(self, nbytes: int, role: str = "", name: str = "", *, filled: bool) -> Block:
        """Return a block as a keeper makes it: ``filled`` when adopted or attached, not by ``create``."""
        block = self.stream.create(nbytes, role, name)
        block.filled = filled
        return block
