"""What streaming a model has moved, held and waited for so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
    peak_tensor_bytes: int = 0
    """Most bytes of tensors beside blocks, such as activations, that counted against the budget at once."""
    activation_bytes: Mapping[str, int] = field(default_factory=dict)
    """Bytes of what the latest forward pass saved for its backward pass, by what was chosen: ``keep``,
    ``pack``, ``recompute`` or ``offload``; empty before there was a plan."""
    activation_added_s: float = 0.0
    """Seconds that this choice is predicted to add to a step in which everything is kept."""
    home_bytes: Mapping[str, int] = field(default_factory=dict)
    """Bytes that lie beside the accelerators, in ``ram`` and in ``files``, where a budget for the CPU bounds
    those in RAM; else empty."""
