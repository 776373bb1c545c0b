"""The same stream on paper: a ledger without bytes, to know a run's traffic before anything moves."""

from __future__ import annotations

from typing import final

from accelera.memory import Ledger, PoolStats
from accelera.offload.block import Block
from accelera.offload.streaming import Stream
from accelera.policy import create_policy


@final
class PaperStream:
    """A stream that only counts.

    Drive ``stream`` with the uses of a run, on blocks that nobody else has, and ``stats`` are the run's.
    """

    def __init__(self, capacity_bytes: int, policy: str = "loop") -> None:
        self._ledger = Ledger(capacity_bytes, create_policy(policy))
        self.stream = Stream(_PaperBooks(self._ledger))

    @property
    def stats(self) -> PoolStats:
        """Hits, misses, evictions, bytes fetched and saved, and peak so far."""
        return self._ledger.stats


@final
class _PaperBooks:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def admit(self, block: Block, step: int, *, write: bool) -> None:
        self._ledger.admit(block.id, block.nbytes, write=write)

    def unpin(self, block: Block, step: int, op: str = "") -> None:
        self._ledger.unpin(block.id)

    def free(self, block: Block, step: int) -> None:
        if block.id in self._ledger:
            self._ledger.free(block.id)
