"""What a run must remember of its own plan: bytes that are no blocks, more of them the longer its passes."""

from __future__ import annotations

from typing import Any

from accelera.plan.eviction import Eviction

BLOCK_BYTES = 1024
"""What the run keeps for each distinct block of a pass: its region, its number, a place in two tables."""
FREE_BYTES = 2 << 20
"""So much is part of what every run reserves for its threads and lists."""
SHARE = 16
"""The books may take this part of the room for blocks besides; a plan that needs more runs in passes."""
WHOLE_STEPS = 12_000
"""A plan of more steps than that runs in passes, for every step of a kind of pass is walked on paper."""
_LONGEST = 6144
_ACCESSES = 3
"""Accesses of a step, each to a block of its own at worst."""


def overhead_bytes(accesses: Any, blocks: Any, eviction: Eviction) -> Any:
    """Return the bytes of a run's books beyond what every run reserves; counts may be columns.

    >>> books_bytes(768, 192, Eviction())
    0
    """
    needed = accesses * eviction.access_bytes + blocks * BLOCK_BYTES - FREE_BYTES
    return needed * (needed > 0)


def overhead_limit(capacity_bytes: int) -> int:
    """Return the most bytes that the books of one pass should take beyond what every run reserves."""
    return max(capacity_bytes, 0) // SHARE


def pass_lengths(capacity_bytes: int, eviction: Eviction) -> tuple[int, int]:
    """Return the most steps of a pass whose books keep to that limit, and of one whose books are free.

    Both are 0 where all steps must be one pass.
    """
    if not eviction.by_pass:
        return 0, 0
    each = _ACCESSES * (eviction.access_bytes + BLOCK_BYTES)
    return min(_LONGEST, (FREE_BYTES + overhead_limit(capacity_bytes)) // each), FREE_BYTES // each
