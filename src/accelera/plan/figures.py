"""What a plan is made of: its steps, the forecast of what they will do, and what was not chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from accelera.plan.operand import Block


@dataclass(frozen=True)
class Step:
    """One call of a kernel: blocks it reads, the block it writes, and what it does with them."""

    reads: tuple[Block, ...]
    """Blocks that must be loaded before the step."""
    write: Block
    """Block the step writes or adds to; held in the pool from its first step to its last."""
    first: bool
    """True when the block written holds nothing yet."""
    last: bool
    """True when the block written is complete afterwards and goes to its store."""
    task: Any
    """What the kernel needs besides the blocks (for matmul, the ranges of k)."""
    compute_s: float
    """Predicted seconds of arithmetic."""
    flops: float = 0.0
    """Floating-point operations."""


@dataclass(frozen=True)
class Forecast:
    """Outcome of a plan's accesses, found by walking them on paper."""

    peak_pool_bytes: int
    """Most bytes the pool holds at any time."""
    bytes_read: Mapping[str, int]
    """Bytes read from stores, by operand."""
    bytes_written: int
    """Bytes written to the result's store."""
    hits: int
    misses: int
    evictions: int
    fetched_bytes: int
    """Bytes brought into the pool, in the element type of its blocks."""
    saved_bytes: int
    """Bytes of the pool's blocks that went to the result's store."""
    steps: int
    """Number of steps."""
    passes: int
    """Number of passes in which they are done; what the pool holds is shared within a pass."""
    seconds: float
    """Predicted wall time, reads, arithmetic and writes overlapping."""
    compute_s: float
    """Seconds of arithmetic alone."""
    stall_s: float
    """Seconds in which the arithmetic waits for data."""
    read_s: float
    """Seconds of reading, one read after the other."""
    write_s: float
    """Seconds of writing."""

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written."""
        return sum(self.bytes_read.values()) + self.bytes_written


@dataclass(frozen=True)
class Alternative:
    """A schedule that was considered and not chosen."""

    schedule: str
    moved_bytes: int
    seconds: float
    reason: str
    """Why it lost, in words."""
