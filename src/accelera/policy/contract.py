"""What an eviction policy must do: keep an order over resident buffers and name a victim.

A policy never counts bytes and never decides *whether* to evict: the pool's ledger does both. It
only answers who goes first. Time is the index of the access, from 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class EvictionPolicy(Protocol):
    """The order in which resident buffers are given up."""

    def insert(self, buffer: int, nbytes: int, time: int) -> None:
        """Take note that ``buffer`` became resident at access ``time``."""

    def touch(self, buffer: int, time: int) -> None:
        """Take note that resident ``buffer`` was accessed again at ``time``."""

    def remove(self, buffer: int) -> None:
        """Forget ``buffer``, which was evicted or freed."""

    def victim(self, evictable: Callable[[int], bool]) -> int | None:
        """Return the resident buffer to give up first among those evictable, or None."""
