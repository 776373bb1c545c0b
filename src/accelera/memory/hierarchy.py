"""Hierarchy of a machine: its tiers in order, the fastest first, their links, and what computes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from accelera.errors import UnknownNameError
from accelera.units import parse_bytes


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


@dataclass(frozen=True)
class Compute:
    """A roofline: a step is bound by its arithmetic or by the bytes it touches."""

    flops_per_s: float
    """Floating-point operations per second."""
    bandwidth_bytes_per_s: float = float("inf")
    """Rate at which the first tier feeds the arithmetic."""
    launch_s: float = 0.0
    """Cost of starting one step."""

    def seconds(self, flops: NDArray[np.float64], touched_bytes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the seconds of steps from their arithmetic and the bytes they touch; shapes (steps,)."""
        bound = np.maximum(flops / self.flops_per_s, touched_bytes / self.bandwidth_bytes_per_s)
        seconds: NDArray[np.float64] = bound + self.launch_s
        return seconds


UNBOUNDED_BYTES = 2**62
"""Capacity of a tier that never fills up."""


@dataclass(frozen=True)
class Hierarchy:
    """Ordered tiers: the one that computes first, and last the home, where every buffer has its place.

    >>> machine = Hierarchy((Tier("ram", 2**34, 1e10), Tier("disk", 2**40, 2e9)))
    >>> machine["disk"].capacity_bytes == 2**40, machine.below("ram").name
    (True, 'disk')
    """

    tiers: tuple[Tier, ...]
    compute: Compute | None = None
    """How fast the first tier's steps compute; None: in no time, unless the trace tells."""
    sequential: bool = False
    """Accesses come one by one and are all alike, as a hardware cache sees them: each is let go at once,
    nothing is written back, nothing freed. The seed's model."""

    @classmethod
    def of(cls, capacity: int | str, bandwidth_bytes_per_s: float = 25e9) -> Hierarchy:
        """Return two tiers: one of ``capacity`` bytes, and a home without end behind one duplex link.

        >>> [tier.name for tier in Hierarchy.of("512MiB")]
        ['memory', 'home']
        """
        memory = Tier("memory", parse_bytes(capacity), float("inf"))
        return cls((memory, Tier("home", UNBOUNDED_BYTES, bandwidth_bytes_per_s)))

    def with_capacity(self, capacity: int | str) -> Hierarchy:
        """Return the same machine with another capacity of its first tier, which may be 0."""
        first = replace(self.tiers[0], capacity_bytes=parse_bytes(capacity))
        return replace(self, tiers=(first, *self.tiers[1:]))

    def __iter__(self) -> Iterator[Tier]:
        return iter(self.tiers)

    def __len__(self) -> int:
        return len(self.tiers)

    def __getitem__(self, name: str) -> Tier:
        """Return the tier called ``name``; raises UnknownNameError."""
        return self.tiers[self._place(name)]

    def below(self, name: str) -> Tier | None:
        """Return the next slower tier, None at the bottom."""
        place = self._place(name) + 1
        return self.tiers[place] if place < len(self.tiers) else None

    def _place(self, name: str) -> int:
        names = [tier.name for tier in self.tiers]
        if name not in names:
            raise UnknownNameError.among("tier", name, names)
        return names.index(name)
