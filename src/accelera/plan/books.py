"""What a run must remember of its own plan: bytes that are no blocks, more of them the more accesses."""

from __future__ import annotations

from typing import Any

from accelera.plan.eviction import Eviction

BLOCK_BYTES = 1024
"""What the run keeps for each distinct block: its region, its number, a place in two tables."""
FREE_BYTES = 2 << 20
"""So much is part of what every run reserves for its threads and lists."""


def books_bytes(accesses: Any, blocks: Any, eviction: Eviction) -> Any:
    """Return the bytes of a run's books beyond what every run reserves; counts may be columns.

    >>> books_bytes(768, 192, Eviction())
    0
    """
    needed = accesses * eviction.access_bytes + blocks * BLOCK_BYTES - FREE_BYTES
    return needed * (needed > 0)
