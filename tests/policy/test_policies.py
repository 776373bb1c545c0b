"""Eviction policies on small cases worked out by hand; their laws are in ``tests/laws``."""

from __future__ import annotations

import inspect
import tracemalloc
from array import array
from collections.abc import Iterable

import pytest

from accelera.errors import UnknownNameError
from accelera.policy import LRU, POLICIES, Belady, EvictionPolicy, create_policy


def anyone(buffer: int) -> bool:
    return True


def fed(policy: EvictionPolicy, accesses: Iterable[int]) -> EvictionPolicy:
    """Return ``policy`` after ``accesses``, with nothing ever evicted."""
    seen: set[int] = set()
    for time, buffer in enumerate(accesses):
        if buffer in seen:
            policy.touch(buffer, time)
        else:
            policy.insert(buffer, 1, time)
        seen.add(buffer)
    return policy


def test_lru_names_whoever_was_used_longest_ago() -> None:
    policy = fed(LRU(), [1, 2, 3, 1])
    assert policy.victim(anyone) == 2
    policy.touch(2, 4)
    assert policy.victim(anyone) == 3


def test_belady_names_whoever_is_used_furthest_in_the_future() -> None:
    future = [1, 2, 3, 2, 1, 3]
    policy = Belady(future)
    for time in range(3):
        policy.insert(future[time], 1, time)
    assert policy.victim(anyone) == 3


def test_belady_prefers_whoever_is_never_used_again() -> None:
    policy = fed(Belady([1, 2, 1, 1, 1]), [1, 2, 1])
    assert policy.victim(anyone) == 2


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_victim_is_only_named_among_the_evictable(name: str) -> None:
    policy = fed(create_policy(name, [1, 2, 3]), [1, 2, 3])
    for wanted in (1, 2, 3):
        assert policy.victim(lambda buffer, wanted=wanted: buffer == wanted) == wanted
    assert policy.victim(lambda buffer: False) is None


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_naming_a_victim_changes_nothing(name: str) -> None:
    policy = fed(create_policy(name, [3, 1, 2, 1, 2, 3]), [3, 1, 2])
    first = policy.victim(anyone)
    policy.victim(lambda buffer: False)
    assert policy.victim(anyone) == first


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_removed_buffers_are_never_named(name: str) -> None:
    policy = fed(create_policy(name, [1, 2, 1, 2]), [1, 2, 1])
    first = policy.victim(anyone)
    assert first is not None
    policy.remove(first)
    assert policy.victim(anyone) == 3 - first
    policy.remove(3 - first)
    assert policy.victim(anyone) is None


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_buffer_may_come_back_after_it_was_removed(name: str) -> None:
    policy = create_policy(name, [1, 1])
    policy.insert(1, 10, 0)
    policy.remove(1)
    policy.insert(1, 20, 1)
    assert policy.victim(anyone) == 1


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_keeps_the_contract(name: str) -> None:
    for method in ("insert", "touch", "remove", "victim"):
        asked = inspect.signature(getattr(EvictionPolicy, method))
        assert inspect.signature(getattr(POLICIES[name], method)).parameters.keys() == asked.parameters.keys()


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_memory_follows_what_is_resident_not_what_was_accessed(name: str) -> None:
    """A run of a million steps must not fill the budget with the policy's own books."""
    accesses = 100_000
    policy = create_policy(name, array("i", [time % 10 for time in range(accesses)]))
    tracemalloc.start()
    try:
        for time in range(10):
            policy.insert(time, 1, time)
        for time in range(10, accesses):
            policy.touch(time % 10, time)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 100_000
    assert policy.victim(anyone) in range(10)


def test_an_unknown_name_is_refused_with_the_near_ones() -> None:
    with pytest.raises(UnknownNameError, match="belady"):
        create_policy("beladi")


def test_each_call_makes_a_policy_of_its_own() -> None:
    one, two = create_policy("lru"), create_policy("lru")
    one.insert(1, 1, 0)
    assert two.victim(anyone) is None
