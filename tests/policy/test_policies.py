"""Eviction policies on small cases worked out by hand; their laws are in ``tests/laws``."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from accelera.errors import UnknownNameError
from accelera.policy import EvictionPolicy, Knowledge, create_policy


def anyone(buffer: int) -> bool:
    return True


def fed(policy: EvictionPolicy, accesses: Iterable[int]) -> EvictionPolicy:
    """Return ``policy`` after ``accesses``, with nothing ever evicted."""
    seen: set[int] = set()
    for time, buffer in enumerate(accesses):
        if buffer in seen:
            policy.touch(buffer, time, False)
        else:
            policy.insert(buffer, 1, time, False)
        seen.add(buffer)
    return policy


def belady(future: list[int]) -> EvictionPolicy:
    return create_policy("belady", Knowledge.of_sequence(future))


def test_lru_names_whoever_was_used_longest_ago() -> None:
    policy = fed(create_policy("lru"), [1, 2, 3, 1])
    assert policy.victim(anyone) == 2
    policy.touch(2, 4, False)
    assert policy.victim(anyone) == 3


def test_belady_names_whoever_is_used_furthest_in_the_future() -> None:
    assert fed(belady([1, 2, 3, 2, 1, 3]), [1, 2, 3]).victim(anyone) == 3


def test_belady_prefers_whoever_is_never_used_again() -> None:
    assert fed(belady([1, 2, 1, 1, 1]), [1, 2, 1]).victim(anyone) == 2


def test_an_unknown_policy_is_refused_with_near_names() -> None:
    with pytest.raises(UnknownNameError, match="belady"):
        create_policy("beladi")
