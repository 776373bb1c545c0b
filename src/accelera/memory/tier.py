"""A tier: one place where bytes can lie, with what it costs to bring them there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tier:
    """A memory with a capacity, a bandwidth and a latency."""

    name: str
    """``"cuda:0"``, ``"ram"``, ``"disk"`` …"""
    capacity_bytes: int
    bandwidth_bytes_per_s: float
    """Rate of moving bytes between this tier and the next faster one."""
    latency_s: float = 0.0
    """Cost of starting one move, seconds."""

    def transfer_s(self, nbytes: int, moves: int = 1) -> float:
        """Return the seconds that ``nbytes`` in ``moves`` pieces take.

        >>> Tier("disk", 10**12, bandwidth_bytes_per_s=2e9, latency_s=1e-4).transfer_s(10**9, moves=10)
        0.501
        """
        return nbytes / self.bandwidth_bytes_per_s + moves * self.latency_s
