"""A tier: one place where bytes can lie, with what it costs to bring them there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tier:
    """A memory with a capacity, and the link that joins it to the next faster one."""

    name: str
    """``"cuda:0"``, ``"ram"``, ``"disk"`` …"""
    capacity_bytes: int
    bandwidth_bytes_per_s: float
    """Rate of moving bytes from this tier to the next faster one."""
    latency_s: float = 0.0
    """Cost of starting one move, seconds."""
    write_bandwidth_bytes_per_s: float | None = None
    """Rate of moving bytes from the next faster tier to this one; None: the same."""
    duplex: bool = True
    """Whether both directions go on at once, each at its rate; otherwise they share one queue."""
    latency_s_per_byte: float = 0.0
    """A delay that grows with the size of a move and is no bandwidth: the seed's model has 0.1 ms per MB."""
    access_s: float = 0.0
    """Seconds of one access that finds its buffer in this tier; counts for the first tier."""

    def transfer_s(self, nbytes: int, moves: int = 1) -> float:
        """Return the seconds that ``nbytes`` in ``moves`` pieces take to the next faster tier.

        >>> Tier("disk", 10**12, bandwidth_bytes_per_s=2e9, latency_s=1e-4).transfer_s(10**9, moves=10)
        0.501
        """
        return nbytes * self.towards_s_per_byte + moves * self.latency_s

    @property
    def towards_s_per_byte(self) -> float:
        """Seconds per byte to the next faster tier."""
        return 1 / self.bandwidth_bytes_per_s + self.latency_s_per_byte

    @property
    def away_s_per_byte(self) -> float:
        """Seconds per byte from the next faster tier."""
        return 1 / (self.write_bandwidth_bytes_per_s or self.bandwidth_bytes_per_s) + self.latency_s_per_byte
