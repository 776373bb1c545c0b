"""The machine of a what-if: a preset with another budget and another link."""

from __future__ import annotations

from dataclasses import dataclass, replace

from accelera.memory import Hierarchy
from accelera.simulator import HIERARCHIES, hierarchy_of

MACHINES = tuple(name for name, each in HIERARCHIES.items() if not each.sequential)
"""Presets whose first tier holds tensors as a program does; in the seed's ``copilot`` nothing is freed."""


@dataclass(frozen=True)
class WhatIf:
    """A preset machine, and what is changed of it."""

    hierarchy: str = "gpu-24gb"
    """One of ``MACHINES``."""
    link_bytes_per_s: float | None = None
    """Rate of the link between the first tier and the next, both ways; None: the preset's."""
    lookahead: int = 0
    """Steps whose operands are loaded while an earlier one computes, as in ``simulate``."""

    def at(self, capacity_bytes: int) -> Hierarchy:
        """Return the machine with ``capacity_bytes`` in its first tier."""
        machine = hierarchy_of(self.hierarchy).with_capacity(capacity_bytes)
        if self.link_bytes_per_s is None:
            return machine
        linked = replace(
            machine.tiers[1],
            bandwidth_bytes_per_s=self.link_bytes_per_s,
            write_bandwidth_bytes_per_s=None,
        )
        return replace(machine, tiers=(machine.tiers[0], linked, *machine.tiers[2:]))
