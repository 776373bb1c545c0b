"""Machines by name and by capacity."""

from __future__ import annotations

import pytest

from accelera import generate_synthetic_trace, simulate
from accelera.errors import UnknownNameError
from accelera.memory import Compute, Hierarchy, Tier
from accelera.simulator import HIERARCHIES, hierarchy_of


@pytest.mark.parametrize("name", sorted(HIERARCHIES))
def test_every_preset_replays(name: str) -> None:
    trace = generate_synthetic_trace("MLP", num_layers=2, seed=0)
    report = simulate(trace, name.upper(), "lru", lookahead=1)
    assert report.hits + report.misses == trace.access_count
    assert [tier.name for tier in report.tiers] == [tier.name for tier in HIERARCHIES[name]]
    assert report.total_s > 0


def test_tiers_get_slower_and_larger() -> None:
    for machine in HIERARCHIES.values():
        sizes = [tier.capacity_bytes for tier in machine]
        rates = [tier.bandwidth_bytes_per_s for tier in machine]
        assert sizes == sorted(sizes)
        assert rates == sorted(rates, reverse=True)


def test_a_capacity_stands_for_two_tiers() -> None:
    assert hierarchy_of("2KiB") == hierarchy_of(2048) == Hierarchy.of(2048)
    assert [tier.name for tier in hierarchy_of("2KiB")] == ["memory", "home"]
    with pytest.raises(UnknownNameError, match="gpu-24gb"):
        hierarchy_of("gpu-24")


def test_a_link_may_be_slower_one_way() -> None:
    disk = Tier("disk", 100, 4.0, latency_s=1.0, write_bandwidth_bytes_per_s=2.0, latency_s_per_byte=0.25)
    assert (disk.towards_s_per_byte, disk.away_s_per_byte) == (0.5, 0.75)
    assert disk.transfer_s(10, moves=2) == 7.0
    assert Hierarchy((disk, disk)).with_capacity("1KiB").tiers[0].capacity_bytes == 1024
    assert Compute(2.0).flops_per_s == 2.0
