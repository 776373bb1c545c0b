"""The tiers of a machine in order, the fastest first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from accelera.errors import UnknownNameError
from accelera.memory.compute import Compute
from accelera.memory.tier import Tier
from accelera.units import parse_bytes

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
        """Return the same machine with another capacity of its first tier."""
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
