"""The tiers of a machine in order, the fastest first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from accelera.errors import UnknownNameError
from accelera.memory.tier import Tier


@dataclass(frozen=True)
class Hierarchy:
    """Ordered tiers, the one that computes first and the one with the files last.

    >>> machine = Hierarchy((Tier("ram", 2**34, 1e10), Tier("disk", 2**40, 2e9)))
    >>> machine["disk"].capacity_bytes == 2**40, machine.below("ram").name
    (True, 'disk')
    """

    tiers: tuple[Tier, ...]

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
