"""What streaming a model has moved, held and waited for so far."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OffloadReport:
    """Counters since the model was offloaded; bytes are bytes of blocks."""

    uses: int
    """Operations that used a block."""
    hits: int
    misses: int
    evictions: int
    fetched_bytes: int
    """Bytes of misses that were read, as the books count them."""
    saved_bytes: int
    """Bytes written back, as the books count them."""
    bytes_read: int
    """Bytes that came from homes."""
    bytes_written: int
    """Bytes that went to homes."""
    peak_bytes: int
    """Most bytes that were resident."""
    capacity_bytes: int
    stall_s: float
    """Seconds that operations waited for their blocks."""
    compute_s: float
    """Seconds between getting the blocks and giving them back."""
