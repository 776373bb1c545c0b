"""Eviction policies on small cases worked out by hand; their laws are in ``tests/laws``."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest

from accelera.errors import ShapeError, UnknownNameError
from accelera.policy import POLICIES, EvictionPolicy, Knowledge, create_policy
from accelera.policy._internal import prepare
from accelera.policy.policies import FOLLOWERS, NEEDS
from accelera.simulator import simulate_cache
from accelera.trace import Trace
from accelera.trace._internal import NEVER


def anyone(buffer: int) -> bool:
    return True


def fed(policy: EvictionPolicy, accesses: Iterable[int]) -> EvictionPolicy:
    """Return ``policy`` after ``accesses``, with nothing ever evicted."""
    seen: set[int] = set()
    for time, buffer in enumerate(accesses):
        if buffer in seen:
            policy.touch(buffer, time, False)
        else:
            policy.miss(buffer, 1, time, False)
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


@pytest.mark.parametrize(
    ("name", "accesses", "victim"),
    [
        ("fifo", [1, 2, 3, 1], 1),
        ("lru", [1, 2, 3, 1], 2),
        ("mru", [1, 2, 3, 1], 1),
        ("loop", [1, 2, 3], 3),
        ("loop", [1, 2, 3, 1, 2, 3, 1], 1),
        ("loop", [1, 2, 2, 3, 1, 2], 1),
        ("loop", [1, 2, 3, 4, 1, 2, 4], 3),
        ("clock", [1, 2, 3, 1], 2),
        ("sieve", [1, 2, 3, 1], 2),
        ("lfu", [1, 1, 2, 3, 3, 2, 2], 1),
        ("slru", [1, 1, 2, 3], 2),
        ("arc", [1, 1, 2, 3], 2),
        ("s3fifo", [1, 2, 2, 2, 3], 1),
        ("wtinylfu", [1, 1, 1, 2, 3], 2),
        ("two_q", [1, 2, 3, 1], 1),
        ("lirs", [1, 2, 3, 1], 2),
    ],
)
def test_small_cases(name: str, accesses: list[int], victim: int) -> None:
    """The oldest, the rarest … of one size, in a capacity that shares out to 2 for new ones at most."""
    policy = fed(create_policy(name, Knowledge(capacity_bytes=8)), accesses)
    assert policy.victim(anyone) == victim


def test_gdsf_keeps_the_small_and_the_often_used() -> None:
    policy = create_policy("gdsf")
    for buffer, nbytes in ((1, 10), (2, 40), (3, 20)):
        policy.insert(buffer, nbytes, buffer, False)
    assert policy.victim(anyone) == 2
    for time in range(4, 8):
        policy.touch(2, time, False)
    assert policy.victim(anyone) == 3


def test_largest_goes_first_and_of_equals_the_longest_untouched() -> None:
    policy = create_policy("largest")
    for buffer, nbytes in ((1, 40), (2, 40), (3, 20)):
        policy.insert(buffer, nbytes, buffer, False)
    assert policy.victim(anyone) == 1
    policy.touch(1, 4, False)
    assert policy.victim(anyone) == 2


def test_belady_by_size_weighs_bytes_by_time() -> None:
    """At time 2: 100 bytes due in 3 block more than 10 bytes due in 6; what is dead goes before both."""
    next_use = np.array([8, 5, NEVER, NEVER], dtype=np.int32)
    policy = create_policy("belady_size", Knowledge(next_use=next_use))
    policy.insert(0, 10, 0, False)
    policy.insert(1, 100, 1, False)
    policy.miss(2, 1, 2, False)
    assert policy.victim(anyone) == 1
    policy.insert(2, 1, 2, False)
    assert policy.victim(anyone) == 2


def test_the_highest_score_goes_first() -> None:
    policy = create_policy("scored", Knowledge(score=np.array([1.0, 5.0, 5.0, -2.0])))
    for time, buffer in enumerate((7, 8, 9)):
        policy.insert(buffer, 1, time, False)
    assert policy.victim(anyone) == 8
    policy.touch(8, 3, False)
    assert policy.victim(anyone) == 9


def test_random_follows_its_seed() -> None:
    def victims(seed: int) -> list[int | None]:
        policy = fed(create_policy("random", Knowledge(seed=seed)), range(50))
        return [policy.victim(anyone) for _ in range(20)]

    assert victims(1) == victims(1) != victims(2)


@pytest.mark.parametrize("name", sorted(set(POLICIES) - {"learned"}))
def test_who_is_held_is_passed_over(name: str) -> None:
    """With all others held, each is named in turn; with all held, nobody is."""
    sequence = [0, 1, 2, 3, 1, 3, 0, 2]
    policy = prepare(name, Trace.from_arrays(sequence, 1), 8).policy()
    fed(policy, sequence[:6])
    for only in range(4):
        assert policy.victim(lambda buffer, only=only: buffer == only) == only
    assert policy.victim(lambda buffer: False) is None


def test_an_unknown_policy_is_refused_with_near_names() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'belady'"):
        create_policy("beladi")
    with pytest.raises(UnknownNameError, match="did you mean 'lru'"):
        prepare("lruu", Trace.from_arrays([0], 1), 8)
    with pytest.raises(UnknownNameError, match="no policy is called 'best'; known: arc"):
        simulate_cache(Trace.from_arrays([0], 1), capacity_bytes=8, policy="best")


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_what_a_policy_needs_is_asked_for_by_name(name: str) -> None:
    needs = NEEDS[FOLLOWERS.get(name, name)]
    if not needs:
        create_policy(name)
    else:
        with pytest.raises(ValueError, match=rf"\[policy\] {name} needs {needs[0]}, which is not given"):
            create_policy(name)


def test_learned_asks_for_its_score() -> None:
    with pytest.raises(ValueError, match=r"learned follows a score and none is given: pass score="):
        prepare("learned", Trace.from_arrays([0, 1], 1), 8)


def test_bad_arguments_are_refused() -> None:
    trace = Trace.from_arrays([0, 1, 0], 1)
    with pytest.raises(ValueError, match="-1 is not a size"):
        simulate_cache(trace, capacity_bytes=-1)
    with pytest.raises(ValueError, match="capacity_bytes=-1 must not be negative"):
        prepare("lru", trace, -1)
    with pytest.raises(ShapeError, match=r"score has shape \(2,\); \(3,\), one per access, is needed"):
        simulate_cache(trace, capacity_bytes=2, policy="scored", score=np.zeros(2))
    with pytest.raises(ShapeError, match=r"score has shape \(3, 1\)"):
        prepare("learned", trace, 2, score=np.zeros((3, 1)))
    with pytest.raises(ValueError, match="score is not a number at access 1"):
        simulate_cache(trace, capacity_bytes=2, policy="learned", score=np.array([0.0, np.nan, 1.0]))


@pytest.mark.parametrize("name", sorted(set(POLICIES) - {"learned"}))
def test_a_cache_smaller_than_every_buffer_misses_everything(name: str) -> None:
    result = simulate_cache(Trace.from_arrays([0, 1, 0, 1], 10), capacity_bytes=1, policy=name)
    assert (result.hits, result.misses, result.evictions) == (0, 4, 0)


@pytest.mark.parametrize("name", sorted(set(POLICIES) - {"learned"}))
def test_buffers_of_no_bytes_and_empty_traces_are_fine(name: str) -> None:
    assert simulate_cache(Trace.from_arrays([0, 1, 0, 1], 0), capacity_bytes=4, policy=name).misses == 2
    assert simulate_cache(Trace.from_arrays([], []), capacity_bytes=4, policy=name).misses == 0


def test_a_policy_that_names_nobody_is_told_so() -> None:
    class Stubborn(EvictionPolicy):
        def insert(self, buffer: int, nbytes: int, time: int, write: bool) -> None: ...
        def touch(self, buffer: int, time: int, write: bool) -> None: ...
        def remove(self, buffer: int) -> None: ...
        def victim(self, evictable: Callable[[int], bool]) -> int | None:
            return None

    with pytest.raises(ValueError, match="the policy names nobody"):
        simulate_cache(Trace.from_arrays([0, 1], 1), capacity_bytes=1, policy=Stubborn())
