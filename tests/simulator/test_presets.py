"""Machines by name and by capacity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from accelera import Trace, generate_synthetic_trace, simulate, simulate_cache, sweep
from accelera.errors import UnknownNameError
from accelera.memory import Compute, Hierarchy, Tier
from accelera.policy import EvictionPolicy, Knowledge
from accelera.simulator import HIERARCHIES
from accelera.simulator._internal import hierarchy_of


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


def test_a_capacity_may_be_a_share_of_the_peak_everywhere() -> None:
    trace = Trace.from_arrays([0, 1, 2, 3] * 5, 1000)
    wanted = simulate(trace, 2000)
    half: Any
    for half in ("50%", "0.5", 0.5, "2kB", np.int64(2000)):
        assert simulate(trace, half).to_dict() == wanted.to_dict()
        assert sweep(trace, "lru", [half], progress=False).capacities == (2000,)
        plain = simulate_cache(trace, capacity_bytes=half, policy="LRU")
        assert plain == simulate_cache(trace, capacity_bytes=2000, policy="lru")
    assert sweep(trace, "lru", "50%", progress=False).policies == ("lru",)


@pytest.mark.parametrize(
    ("given", "kind", "says"),
    [
        ({}, TypeError, "dict is no hierarchy"),
        ("0%", ValueError, "no share above 0"),
        ("7parsecs", ValueError, "unknown unit"),
        ("lots", UnknownNameError, "no hierarchy is called 'lots'"),
        (2**70, ValueError, r"over 2\*\*62 bytes"),
    ],
)
def test_what_is_no_hierarchy_is_told(given: Any, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        simulate(Trace.from_arrays([0], 10), given)


@pytest.mark.parametrize("given", [7, object(), lambda known: LastInFirstOut])
def test_what_is_no_policy_is_told(given: Any) -> None:
    with pytest.raises(TypeError, match="is no policy; give a name, an object"):
        simulate(Trace.from_arrays([0], 10), 10, given)


class LastInFirstOut(EvictionPolicy):
    """Made from its Knowledge, as the engine takes policies."""

    def __init__(self, known: Knowledge) -> None:
        assert known.next_use is not None
        self.stack: list[int] = []

    def insert(self, buffer: int, nbytes: int, time: int, write: bool) -> None:
        self.stack.append(buffer)

    def touch(self, buffer: int, time: int, write: bool) -> None:
        pass

    def remove(self, buffer: int) -> None:
        self.stack.remove(buffer)

    def victim(self, evictable: Callable[[int], bool]) -> int | None:
        return next(filter(evictable, reversed(self.stack)), None)


def test_a_class_is_a_policy_for_every_tier() -> None:
    trace = Trace.from_arrays([0, 1, 2, 0, 1, 2], 10)
    machine = Hierarchy((Tier("a", 20, 1e9), Tier("b", 30, 1e9), Tier("c", 10**9, 1e9)))
    assert simulate(trace, machine, LastInFirstOut).tiers[0].hits == 1
    assert simulate_cache(trace, capacity_bytes=20, policy=LastInFirstOut).hits == 1
