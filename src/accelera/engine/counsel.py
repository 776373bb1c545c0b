"""Advice on a plan: the simulator asked about its accesses, on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from accelera.plan import Plan

if TYPE_CHECKING:
    from accelera.memory import Hierarchy
    from accelera.simulator import Advice


def advice_on(plan: Plan, options: Mapping[str, Any]) -> Advice:
    """Return what ``accelera.advise`` says of a plan's accesses, with the plan's capacity and rates."""
    from accelera.simulator import advise

    return advise(plan.trace(), **{"hierarchy": machine_of(plan), **options})


def machine_of(plan: Plan) -> Hierarchy:
    """Return the two tiers that a plan works in: its blocks' memory, and the stores as fast as planned.

    Links count bytes as the pool holds them; reads and writes go on at once.
    """
    from accelera.memory import UNBOUNDED_BYTES, Hierarchy, Tier

    said = plan.forecast
    read = said.fetched_bytes / said.read_s if said.read_s else float("inf")
    write = said.saved_bytes / said.write_s if said.write_s else float("inf")
    stores = Tier("stores", UNBOUNDED_BYTES, read, write_bandwidth_bytes_per_s=write)
    return Hierarchy((Tier(plan.tier, plan.capacity_bytes, float("inf")), stores))
