"""What an advice consists of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Ranked:
    """One policy's figures at the capacity asked about; sizes in bytes, times in seconds."""

    policy: str
    moved_bytes: int
    stall_s: float
    total_s: float
    regret: float | None
    """Moved bytes over the least that any schedule moves; None where that is 0 or was not worked out."""
    needs_future: bool
    """Whether it must know the accesses to come, as the engine does, and a loop's second turn."""


@dataclass(frozen=True)
class Depth:
    """Effect of loading a number of steps ahead."""

    lookahead: int
    """Further steps admitted while one computes."""
    stall_s: float
    moved_bytes: int


@dataclass(frozen=True)
class Resident:
    """A buffer worth keeping in the first tier throughout."""

    name: str
    size_bytes: int
    saved_bytes: int
    """Bytes that LRU would otherwise move for it after the first time."""

    @property
    def saved_per_byte(self) -> float:
        """Bytes saved per byte of room."""
        return self.saved_bytes / self.size_bytes


@dataclass(frozen=True)
class Offload:
    """Cost of working in less memory than everything needs; times in seconds."""

    compute_s: float
    """Arithmetic alone: the time with memory for everything."""
    transfer_s: float
    """How long the busier direction of the first link moves data."""
    stall_s: float
    """Waiting with the policy and look-ahead advised."""
    recompute_total_s: float
    """Time in all when buffers may be made again instead of moved."""

    @property
    def slowdown(self) -> float:
        """Time in all over arithmetic alone; infinity where the trace tells of no arithmetic."""
        total_s = self.compute_s + self.stall_s
        if not self.compute_s:
            return float("inf") if total_s else 1.0
        return total_s / self.compute_s
